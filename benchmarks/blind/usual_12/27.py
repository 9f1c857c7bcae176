import math

import keras
from keras import layers, ops


class MultiHeadSelfAttention(layers.Layer):
    """Multi-head self-attention for the Keras text examples.

    Input and output: (batch, time, embed_dim).
    """

    def __init__(self, embed_dim=64, num_heads=4, **kwargs):
        super().__init__(**kwargs)
        if embed_dim % num_heads != 0:
            raise ValueError(f"embed_dim={embed_dim} should be divisible by num_heads={num_heads}")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.projection_dim = embed_dim // num_heads
        self.query_dense = layers.Dense(embed_dim)
        self.key_dense = layers.Dense(embed_dim)
        self.value_dense = layers.Dense(embed_dim)
        self.combine_heads = layers.Dense(embed_dim)

    def attention(self, query, key, value):
        score = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))
        scaled_score = score / math.sqrt(self.projection_dim)
        weights = ops.softmax(scaled_score, axis=1)
        return ops.matmul(weights, value), weights

    def separate_heads(self, x, batch_size, length):
        x = ops.reshape(x, (batch_size, length, self.num_heads, self.projection_dim))
        return ops.transpose(x, (0, 2, 1, 3))

    def call(self, inputs):
        batch_size, length = ops.shape(inputs)[0], ops.shape(inputs)[1]
        query = self.separate_heads(self.query_dense(inputs), batch_size, length)
        key = self.separate_heads(self.key_dense(inputs), batch_size, length)
        value = self.separate_heads(self.value_dense(inputs), batch_size, length)
        attended, _ = self.attention(query, key, value)
        attended = ops.transpose(attended, (0, 2, 1, 3))
        concat = ops.reshape(attended, (batch_size, length, self.embed_dim))
        return self.combine_heads(concat)

    def get_config(self):
        config = super().get_config()
        config.update({"embed_dim": self.embed_dim, "num_heads": self.num_heads})
        return config
