import keras
from keras import layers, ops


@keras.saving.register_keras_serializable(package="chapter11")
class CausalAttention(layers.Layer):
    """Causal attention; a Keras mask of the tokens, if there is one, is honoured too.

    The mask arrives as (batch, length), True for real tokens, and is turned into a
    penalty that is subtracted. Padding is on the right, so the first key of every
    row is visible.
    """

    def __init__(self, dim=32, num_heads=4, rate=0.0, **kwargs):
        super().__init__(**kwargs)
        self.dim, self.num_heads, self.rate = dim, num_heads, rate
        self.head_dim = dim // num_heads
        self.supports_masking = True
        self.q = layers.EinsumDense("abc,cde->abde", output_shape=(None, num_heads, self.head_dim), bias_axes="de")
        self.k = layers.EinsumDense("abc,cde->abde", output_shape=(None, num_heads, self.head_dim), bias_axes="de")
        self.v = layers.EinsumDense("abc,cde->abde", output_shape=(None, num_heads, self.head_dim), bias_axes="de")
        self.o = layers.Dense(dim)
        self.dropout = layers.Dropout(rate)

    def call(self, x, mask=None, training=None):
        n = ops.shape(x)[1]
        q, k, v = self.q(x), self.k(x), self.v(x)
        scores = ops.cast(ops.einsum("bihd,bjhd->bhij", q, k), "float32") / self.head_dim ** 0.5
        i = ops.arange(n)
        hidden = ops.expand_dims(i, 0) > ops.expand_dims(i, 1)
        hidden = ops.reshape(hidden, (1, 1, n, n))
        if mask is not None:
            pad = ops.logical_not(ops.cast(mask, "bool"))
            hidden = ops.logical_or(hidden, ops.expand_dims(ops.expand_dims(pad, 1), 1))
        scores = scores - 1e9 * ops.cast(hidden, scores.dtype)
        weights = ops.cast(ops.softmax(scores, axis=-1), v.dtype)
        weights = self.dropout(weights, training=training)
        y = ops.einsum("bhij,bjhd->bihd", weights, v)
        return self.o(ops.reshape(y, (-1, n, self.dim)))

    def get_config(self):
        return {**super().get_config(), "dim": self.dim, "num_heads": self.num_heads, "rate": self.rate}
