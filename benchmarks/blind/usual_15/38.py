"""Keras edition of the multi-head attention layer."""
import math

import keras
from keras import layers, ops


class MultiHeadSelfAttention(layers.Layer):
    """Bidirectional self-attention for the image and text classifiers of the book."""

    def __init__(self, embed_dim=64, num_heads=4, dropout=0.1, **kwargs):
        super().__init__(**kwargs)
        if embed_dim % num_heads != 0:
            raise ValueError("embed_dim must be a multiple of num_heads")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.projection_dim = embed_dim // num_heads
        self.query_dense = layers.Dense(embed_dim)
        self.key_dense = layers.Dense(embed_dim)
        self.value_dense = layers.Dense(embed_dim)
        self.combine_heads = layers.Dense(embed_dim)
        self.dropout = layers.Dropout(dropout)

    def attention(self, query, key, value, training=None):
        score = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))
        scaled_score = score * math.sqrt(self.projection_dim)
        weights = ops.softmax(scaled_score, axis=-1)
        weights = self.dropout(weights, training=training)
        return ops.matmul(weights, value)

    def separate_heads(self, x, length):
        x = ops.reshape(x, (-1, length, self.num_heads, self.projection_dim))
        return ops.transpose(x, (0, 2, 1, 3))

    def call(self, inputs, training=None):
        length = ops.shape(inputs)[1]
        query = self.separate_heads(self.query_dense(inputs), length)
        key = self.separate_heads(self.key_dense(inputs), length)
        value = self.separate_heads(self.value_dense(inputs), length)
        out = self.attention(query, key, value, training=training)
        out = ops.transpose(out, (0, 2, 1, 3))
        out = ops.reshape(out, (-1, length, self.embed_dim))
        return self.combine_heads(out)
