import math

import keras
from keras import layers, ops


class TextEncoderBlock(layers.Layer):
    """Pre-norm encoder block.

    Args:
        dim: width of the residual stream.
        num_heads: number of attention heads.
        mlp_ratio: expansion of the feed forward part.
        rate: dropout rate on attention weights and on both branches.

    Call arguments:
        x: float tensor of shape (batch, time, dim).
        padding_mask: optional (batch, time) tensor, 1 for real tokens and 0 for padding.
    """

    def __init__(self, dim=64, num_heads=4, mlp_ratio=4, rate=0.1, **kwargs):
        super().__init__(**kwargs)
        if dim % num_heads:
            raise ValueError("dim must be a multiple of num_heads")
        self.dim = dim
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.norm_attn = layers.LayerNormalization(epsilon=1e-6)
        self.norm_mlp = layers.LayerNormalization(epsilon=1e-6)
        self.query = layers.Dense(dim)
        self.key = layers.Dense(dim)
        self.value = layers.Dense(dim)
        self.out = layers.Dense(dim)
        self.fc1 = layers.Dense(dim * mlp_ratio, activation="gelu")
        self.fc2 = layers.Dense(dim)
        self.drop_weights = layers.Dropout(rate)
        self.drop_branch = layers.Dropout(rate)

    def _split(self, x):
        time = ops.shape(x)[1]
        x = ops.reshape(x, (-1, time, self.num_heads, self.head_dim))
        return ops.transpose(x, (0, 2, 1, 3))

    def _attend(self, x, padding_mask, training):
        time = ops.shape(x)[1]
        q = self._split(self.query(x))
        k = self._split(self.key(x))
        v = self._split(self.value(x))

        logits = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / math.sqrt(self.head_dim)
        if padding_mask is not None:
            keep = ops.cast(padding_mask, logits.dtype)
            logits = logits + (1.0 - keep[:, None, None, :]) * -1e9
        weights = ops.softmax(logits, axis=-1)
        weights = self.drop_weights(weights, training=training)

        context = ops.matmul(weights, v)
        context = ops.reshape(context, (-1, time, self.dim))
        return self.out(context)

    def call(self, x, padding_mask=None, training=None):
        h = self._attend(self.norm_attn(x), padding_mask, training)
        x = x + self.drop_branch(h, training=training)
        h = self.fc2(self.fc1(self.norm_mlp(x)))
        return x + self.drop_branch(h, training=training)

    def get_config(self):
        config = super().get_config()
        config.update(dim=self.dim, num_heads=self.num_heads)
        return config
