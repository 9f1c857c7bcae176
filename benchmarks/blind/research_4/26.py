import keras
from keras import ops


class MaskedTemporalAttention(keras.layers.Layer):
    """Multi-head self-attention over time steps for irregular clinical series.

    Call arguments:
        x: `(batch, time, features)`.
        mask: boolean `(batch, time)`, `True` for observed steps. A `Masking` layer ahead supplies it.
    """

    def __init__(self, num_heads=4, head_dim=16, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.dropout_rate = dropout
        self.supports_masking = True

    def build(self, input_shape):
        inner = self.num_heads * self.head_dim
        self.q_dense = keras.layers.Dense(inner, name="query")
        self.k_dense = keras.layers.Dense(inner, name="key")
        self.v_dense = keras.layers.Dense(inner, name="value")
        self.o_dense = keras.layers.Dense(input_shape[-1], name="output")
        for layer in (self.q_dense, self.k_dense, self.v_dense):
            layer.build(input_shape)
        self.o_dense.build((input_shape[0], input_shape[1], inner))
        self.drop = keras.layers.Dropout(self.dropout_rate)
        self.built = True

    def _split(self, t):
        batch, steps = ops.shape(t)[0], ops.shape(t)[1]
        t = ops.reshape(t, (batch, steps, self.num_heads, self.head_dim))
        return ops.transpose(t, (0, 2, 1, 3))

    def call(self, x, mask=None, training=None):
        q = self._split(self.q_dense(x))
        k = self._split(self.k_dense(x))
        v = self._split(self.v_dense(x))

        scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / self.head_dim**0.5
        if mask is not None:
            allowed = ops.cast(mask, "bool")[:, None, :, None]
            scores = ops.where(allowed, scores, -1e9)
        weights = self.drop(ops.softmax(scores, axis=-1), training=training)

        out = ops.transpose(ops.matmul(weights, v), (0, 2, 1, 3))
        batch, steps = ops.shape(x)[0], ops.shape(x)[1]
        out = ops.reshape(out, (batch, steps, self.num_heads * self.head_dim))
        return self.o_dense(out)

    def get_config(self):
        config = super().get_config()
        config.update(num_heads=self.num_heads, head_dim=self.head_dim, dropout=self.dropout_rate)
        return config
