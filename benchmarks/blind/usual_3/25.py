import math

import keras
from keras import layers, ops


class MultiHeadSelfAttention(layers.Layer):
    """Scaled dot-product self attention with several heads.

    Input (batch, steps, embed_dim). `mask` is (batch, steps), True for steps to keep.
    """

    def __init__(self, embed_dim=64, num_heads=4, dropout=0.1, **kwargs):
        super().__init__(**kwargs)
        if embed_dim % num_heads != 0:
            raise ValueError("embedding dimension must be divisible by number of heads")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.projection_dim = embed_dim // num_heads
        self.scale = 1.0 / math.sqrt(self.projection_dim)

        self.query_dense = layers.Dense(embed_dim)
        self.key_dense = layers.Dense(embed_dim)
        self.value_dense = layers.Dense(embed_dim)
        self.combine_heads = layers.Dense(embed_dim)
        self.dropout = layers.Dropout(dropout)

    def attention(self, query, key, value, mask=None, training=None):
        score = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))
        dim_key = ops.cast(ops.shape(key)[-1], score.dtype)
        scaled_score = score / ops.sqrt(dim_key)
        if mask is not None:
            mask = ops.cast(mask, scaled_score.dtype)
            scaled_score = scaled_score + (1.0 - mask[:, None, None, :]) * -1e9
        weights = ops.softmax(scaled_score, axis=-1)
        weights = self.dropout(weights, training=training)
        return ops.matmul(weights, value)

    def separate_heads(self, x):
        steps = ops.shape(x)[1]
        x = ops.reshape(x, (-1, steps, self.num_heads, self.projection_dim))
        return ops.transpose(x, (0, 2, 1, 3))

    def call(self, inputs, mask=None, training=None):
        steps = ops.shape(inputs)[1]
        query = self.separate_heads(self.query_dense(inputs)) * self.scale
        key = self.separate_heads(self.key_dense(inputs))
        value = self.separate_heads(self.value_dense(inputs))

        attention = self.attention(query, key, value, mask=mask, training=training)
        attention = ops.transpose(attention, (0, 2, 1, 3))
        attention = ops.reshape(attention, (-1, steps, self.embed_dim))
        return self.combine_heads(attention)

    def get_config(self):
        config = super().get_config()
        config.update({"embed_dim": self.embed_dim, "num_heads": self.num_heads})
        return config
