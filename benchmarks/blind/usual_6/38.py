import math

import keras
from keras import layers, ops


class HiddenTokenAttention(layers.Layer):
    """Multi-head self-attention.

    Call arguments:
        x: (batch, length, dim)
        hide: optional (batch, length), **1 for tokens to ignore** and 0 for tokens to
            read. This is the opposite of a Keras mask, hence the other name.
    """

    def __init__(self, dim=64, num_heads=4, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        if dim % num_heads:
            raise ValueError("dim must be divisible by num_heads")
        self.dim = dim
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.rate = dropout
        self.to_q = layers.Dense(dim, name="to_q")
        self.to_k = layers.Dense(dim, name="to_k")
        self.to_v = layers.Dense(dim, name="to_v")
        self.to_out = layers.Dense(dim, name="to_out")
        self.drop = layers.Dropout(dropout)

    def build(self, input_shape):
        for dense in (self.to_q, self.to_k, self.to_v):
            dense.build(input_shape)
        self.to_out.build((*input_shape[:-1], self.dim))
        super().build(input_shape)

    def split(self, t):
        b, n = ops.shape(t)[0], ops.shape(t)[1]
        return ops.transpose(ops.reshape(t, (b, n, self.num_heads, self.head_dim)), (0, 2, 1, 3))

    def call(self, x, hide=None, training=None):
        q, k, v = self.split(self.to_q(x)), self.split(self.to_k(x)), self.split(self.to_v(x))
        scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / math.sqrt(self.head_dim)
        if hide is not None:
            hide = ops.cast(hide, scores.dtype)
            scores = scores + hide[:, None, None, :] * -1e9
        weights = self.drop(ops.softmax(scores, axis=-1), training=training)
        out = ops.transpose(ops.matmul(weights, v), (0, 2, 1, 3))
        b, n = ops.shape(x)[0], ops.shape(x)[1]
        return self.to_out(ops.reshape(out, (b, n, self.dim)))

    def get_config(self):
        config = super().get_config()
        config.update({"dim": self.dim, "num_heads": self.num_heads, "dropout": self.rate})
        return config
