import keras
from keras import layers, ops


class CausalMultiQueryAttention(layers.Layer):
    """Causal attention with many query heads and a single key/value head.

    Works on (batch, time, features). The optional Keras mask (batch, time) is True for valid
    steps. Padding is at the end of a sequence, so every step keeps at least step 0.
    """

    def __init__(self, dim=64, num_heads=8, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.dim = dim
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.to_q = layers.Dense(dim, use_bias=False)
        self.to_k = layers.Dense(self.head_dim, use_bias=False)
        self.to_v = layers.Dense(self.head_dim, use_bias=False)
        self.to_out = layers.Dense(dim)

    def call(self, x, mask=None):
        n = ops.shape(x)[1]
        q = ops.reshape(self.to_q(x), (-1, n, self.num_heads, self.head_dim))
        k = self.to_k(x)
        v = self.to_v(x)

        scores = ops.einsum("bihd,bjd->bhij", q, k) * (self.head_dim ** -0.5)

        steps = ops.arange(n)
        allowed = ops.expand_dims(steps, 1) >= ops.expand_dims(steps, 0)
        allowed = allowed[None, None, :, :]
        if mask is not None:
            allowed = ops.logical_and(allowed, ops.cast(mask, "bool")[:, None, None, :])
        scores = ops.where(allowed, scores, -1e9)

        weights = ops.softmax(scores, axis=-1)
        y = ops.einsum("bhij,bjd->bihd", weights, v)
        return self.to_out(ops.reshape(y, (-1, n, self.dim)))
