import keras
from keras import layers, ops


class TemporalSelfAttention(layers.Layer):
    """Multi-head self attention on sensor windows of shape (batch, time, features).

    ``mask`` is (batch, time) with True at observed steps.
    """

    def __init__(self, dim=32, num_heads=4, dropout=0.1, **kwargs):
        super().__init__(**kwargs)
        if dim % num_heads:
            raise ValueError("dim has to be a multiple of num_heads")
        self.dim = dim
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.q_dense = layers.Dense(dim, use_bias=False)
        self.k_dense = layers.Dense(dim, use_bias=False)
        self.v_dense = layers.Dense(dim, use_bias=False)
        self.o_dense = layers.Dense(dim)
        self.drop = layers.Dropout(dropout)
        self.supports_masking = True

    def _split(self, x):
        shape = ops.shape(x)
        x = ops.reshape(x, (shape[0], shape[1], self.num_heads, self.head_dim))
        return ops.transpose(x, (0, 2, 1, 3))

    def call(self, x, mask=None, training=None):
        shape = ops.shape(x)
        q = self._split(self.q_dense(x))
        k = self._split(self.k_dense(x))
        v = self._split(self.v_dense(x))

        scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / self.head_dim ** 0.5
        if mask is not None:
            blocked = 1.0 - ops.cast(mask, scores.dtype)
            scores = scores - 1e9 * blocked[:, None, None, :]
        weights = ops.softmax(scores, axis=1)
        weights = self.drop(weights, training=training)

        out = ops.transpose(ops.matmul(weights, v), (0, 2, 1, 3))
        out = ops.reshape(out, (shape[0], shape[1], self.dim))
        return self.o_dense(out)

    def get_config(self):
        config = super().get_config()
        config.update({"dim": self.dim, "num_heads": self.num_heads, "dropout": self.drop.rate})
        return config
