import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
from keras import layers, ops


class SelfAttentionLayer(layers.Layer):
    """Multi-head self-attention.

    Call arguments:
        inputs: (batch, seq, dim)
        mask: optional boolean (batch, seq) Keras mask, as produced by Embedding(mask_zero=True)
    """

    def __init__(self, dim=64, num_heads=4, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.dim = dim
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.supports_masking = True
        self.wq = layers.Dense(dim)
        self.wk = layers.Dense(dim)
        self.wv = layers.Dense(dim)
        self.wo = layers.Dense(dim)
        self.drop = layers.Dropout(dropout)

    def _split(self, x):
        n = ops.shape(x)[0]
        t = ops.shape(x)[1]
        x = ops.reshape(x, (n, t, self.num_heads, self.head_dim))
        return ops.transpose(x, (0, 2, 1, 3))

    def call(self, inputs, mask=None, training=None):
        q = self._split(self.wq(inputs))
        k = self._split(self.wk(inputs))
        v = self._split(self.wv(inputs))
        scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / (self.head_dim**0.5)
        if mask is not None:
            mask = ops.cast(mask, scores.dtype)[:, None, None, :]
            scores = scores + mask * -1e9
        weights = ops.softmax(scores, axis=-1)
        weights = self.drop(weights, training=training)
        out = ops.transpose(ops.matmul(weights, v), (0, 2, 1, 3))
        out = ops.reshape(out, (ops.shape(inputs)[0], ops.shape(inputs)[1], self.dim))
        return self.wo(out)
