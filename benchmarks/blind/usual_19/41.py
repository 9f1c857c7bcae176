import keras
from keras import layers, ops


class CausalSelfAttention(layers.Layer):
    """Causal multi-head attention with projections in EinsumDense form.

    Args:
        dim: width of input and output.
        num_heads: number of heads.
        dropout: rate on the attention weights.

    Call arguments:
        x: (batch, time, dim)
        mask: optional (batch, time) boolean, True for tokens
    """

    def __init__(self, dim=64, num_heads=4, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.dim = dim
        self.num_heads = num_heads
        self.dropout_rate = dropout
        self.head_dim = dim // num_heads
        self.supports_masking = True

        def project():
            return layers.EinsumDense("btc,chd->bthd", output_shape=(None, num_heads, self.head_dim), bias_axes="hd")

        self.q = project()
        self.k = project()
        self.v = project()
        self.o = layers.EinsumDense("bthd,hdc->btc", output_shape=(None, dim), bias_axes="c")
        self.dropout = layers.Dropout(dropout)

    def call(self, x, mask=None, training=None):
        t = ops.shape(x)[1]
        q = self.q(x) * self.head_dim ** -0.5
        k = self.k(x)
        v = self.v(x)

        scores = ops.einsum("bthd,bshd->bhts", q, k)
        pos = ops.arange(t)
        allowed = ops.reshape(pos, (1, 1, -1, 1)) >= ops.reshape(pos, (1, 1, 1, -1))
        if mask is not None:
            keys = ops.cast(mask, "bool")[:, None, None, :]
            allowed = ops.logical_and(allowed, keys)
        scores = ops.where(allowed, scores, -6e4 if self.compute_dtype == "float16" else -1e9)

        weights = self.dropout(ops.softmax(scores, axis=-1), training=training)
        return self.o(ops.einsum("bhts,bshd->bthd", weights, v))

    def get_config(self):
        return {
            **super().get_config(),
            "dim": self.dim,
            "num_heads": self.num_heads,
            "dropout": self.dropout_rate,
        }
