import keras
from keras import ops


class MaskedSelfAttention(keras.layers.Layer):
    """Multi-head self attention for padded batches.

    Consumes the mask of ``Embedding(mask_zero=True)`` or ``Masking``: boolean, shape (batch, time),
    ``True`` for the steps to be used.
    """

    def __init__(self, dim=32, num_heads=4, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        if dim % num_heads:
            raise ValueError("`dim` must be a multiple of `num_heads`.")
        self.supports_masking = True
        self.dim = dim
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.dropout_rate = dropout
        self.query = keras.layers.Dense(dim, name="query")
        self.key = keras.layers.Dense(dim, name="key")
        self.value = keras.layers.Dense(dim, name="value")
        self.combine = keras.layers.Dense(dim, name="combine")
        self.drop = keras.layers.Dropout(dropout)

    def build(self, input_shape):
        for layer in (self.query, self.key, self.value):
            layer.build(input_shape)
        self.combine.build(tuple(input_shape[:-1]) + (self.dim,))
        self.built = True

    def _split(self, x):
        shape = ops.shape(x)
        x = ops.reshape(x, (shape[0], shape[1], self.num_heads, self.head_dim))
        return ops.transpose(x, (0, 2, 1, 3))

    def call(self, inputs, mask=None, training=None):
        shape = ops.shape(inputs)
        q = self._split(self.query(inputs))
        k = self._split(self.key(inputs))
        v = self._split(self.value(inputs))

        scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / (self.head_dim ** 0.5)
        if mask is not None:
            scores = scores + ops.cast(mask, scores.dtype)[:, None, None, :] * -1e9
        weights = self.drop(ops.softmax(scores, axis=-1), training=training)

        out = ops.transpose(ops.matmul(weights, v), (0, 2, 1, 3))
        out = ops.reshape(out, (shape[0], shape[1], self.dim))
        return self.combine(out)

    def get_config(self):
        config = super().get_config()
        config.update(dim=self.dim, num_heads=self.num_heads, dropout=self.dropout_rate)
        return config
