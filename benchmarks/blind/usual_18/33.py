import keras
from keras import layers, ops


class PaddedSelfAttention(layers.Layer):
    """Multi-head self-attention that honours the mask of an upstream Embedding(mask_zero=True).

    The mask is boolean, (batch, time), True for real steps. It is turned into a large negative number
    which is added to the logits of the padded keys; rows of padded queries hold unimportant values
    and are ignored downstream, where the mask arrives as well.
    """

    def __init__(self, dim=64, num_heads=4, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        if dim % num_heads:
            raise ValueError("dim must be divisible by num_heads")
        self.dim = dim
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.rate = dropout
        self.supports_masking = True

        self.query_dense = layers.Dense(dim, name="query")
        self.key_dense = layers.Dense(dim, use_bias=False, name="key")
        self.value_dense = layers.Dense(dim, name="value")
        self.output_dense = layers.Dense(dim, name="output")
        self.dropout = layers.Dropout(dropout)

    def build(self, input_shape):
        for dense in (self.query_dense, self.key_dense, self.value_dense):
            dense.build(input_shape)
        self.output_dense.build((*input_shape[:-1], self.dim))
        super().build(input_shape)

    def _split(self, x):
        length = ops.shape(x)[1]
        x = ops.reshape(x, (-1, length, self.num_heads, self.head_dim))
        return ops.transpose(x, (0, 2, 1, 3))

    def call(self, inputs, mask=None, training=None):
        q = self._split(self.query_dense(inputs)) / (self.head_dim ** 0.5)
        k = self._split(self.key_dense(inputs))
        v = self._split(self.value_dense(inputs))

        logits = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2)))
        if mask is not None:
            lowest = -3e4 if self.compute_dtype == "float16" else -1e9
            pad = 1.0 - ops.cast(mask, logits.dtype)
            logits = logits + lowest * pad[:, None, None, :]

        weights = ops.softmax(logits, axis=-1)
        weights = self.dropout(weights, training=training)
        out = ops.transpose(ops.matmul(weights, v), (0, 2, 1, 3))
        out = ops.reshape(out, (-1, ops.shape(inputs)[1], self.dim))
        return self.output_dense(out)

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.dim)

    def get_config(self):
        config = super().get_config()
        config.update(dim=self.dim, num_heads=self.num_heads, dropout=self.rate)
        return config


keras.saving.register_keras_serializable(package="attention")(PaddedSelfAttention)
