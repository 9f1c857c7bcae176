import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
from keras import layers, ops


class KerasSelfAttention(layers.Layer):
    """Multi-head self-attention.

    Inputs: (batch, time, embed_dim). ``padding_mask``: (batch, time), 1 for tokens and 0 for
    padding.
    """

    def __init__(self, embed_dim=64, num_heads=4, **kwargs):
        super().__init__(**kwargs)
        if embed_dim % num_heads != 0:
            raise ValueError("embed_dim must be divisible by num_heads")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.projection_dim = embed_dim // num_heads
        self.query_dense = layers.Dense(embed_dim)
        self.key_dense = layers.Dense(embed_dim)
        self.value_dense = layers.Dense(embed_dim)
        self.combine_heads = layers.Dense(embed_dim)

    def separate_heads(self, x, batch_size):
        x = ops.reshape(x, (batch_size, -1, self.num_heads, self.projection_dim))
        return ops.transpose(x, (0, 2, 1, 3))

    def attention(self, query, key, value, padding_mask):
        score = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))
        scaled_score = score / (self.projection_dim ** 0.5)
        if padding_mask is not None:
            m = ops.cast(padding_mask, scaled_score.dtype)[:, None, None, :]
            scaled_score = scaled_score + (1.0 - m) * -1e-9
        weights = ops.softmax(scaled_score, axis=-1)
        return ops.matmul(weights, value), weights

    def call(self, inputs, padding_mask=None):
        batch_size = ops.shape(inputs)[0]
        query = self.separate_heads(self.query_dense(inputs), batch_size)
        key = self.separate_heads(self.key_dense(inputs), batch_size)
        value = self.separate_heads(self.value_dense(inputs), batch_size)
        attention, _ = self.attention(query, key, value, padding_mask)
        attention = ops.transpose(attention, (0, 2, 1, 3))
        concat = ops.reshape(attention, (batch_size, -1, self.embed_dim))
        return self.combine_heads(concat)
