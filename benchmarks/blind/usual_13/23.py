import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
from keras import layers, ops


class TokenPooling(layers.Layer):
    """Attention pooling with a learned query per head.

    Call with features (batch, time, dim) and optionally ``mask`` (batch, time), True for real
    steps. Returns (batch, dim).
    """

    def __init__(self, dim=64, num_heads=4, **kwargs):
        super().__init__(**kwargs)
        self.dim = dim
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.supports_masking = True
        self.key = layers.Dense(dim, use_bias=False)
        self.value = layers.Dense(dim)

    def build(self, input_shape):
        self.query = self.add_weight(
            name="query", shape=(self.num_heads, self.head_dim), initializer="glorot_uniform"
        )
        self.key.build(input_shape)
        self.value.build(input_shape)
        self.built = True

    def compute_mask(self, inputs, mask=None):
        # the time axis is gone
        return None

    def call(self, inputs, mask=None):
        t = ops.shape(inputs)[1]
        k = ops.reshape(self.key(inputs), (-1, t, self.num_heads, self.head_dim))
        v = ops.reshape(self.value(inputs), (-1, t, self.num_heads, self.head_dim))
        scores = ops.einsum("hd,bthd->bth", self.query, k) / (self.head_dim ** 0.5)
        if mask is not None:
            keep = ops.cast(ops.expand_dims(mask, -1), scores.dtype)
            scores = scores - (1.0 - keep) * 1e9
        # softmax over time, which is axis 1 in this layout
        weights = ops.softmax(scores, axis=1)
        pooled = ops.einsum("bth,bthd->bhd", weights, v)
        return ops.reshape(pooled, (-1, self.dim))
