import keras
from keras import layers, ops


class SharedKVAttention(layers.Layer):
    """Multi-head self-attention in which one projection serves as both keys and values.

    Tying them saves a quarter of the parameters of the layer. Padded positions (mask False) are
    never attended to and their own outputs are set to zero.

    Call arguments:
        x: `(batch, time, features)`.
        mask: boolean `(batch, time)`, True for valid steps.
        use_causal_mask: whether a step may only see itself and earlier steps.
    """

    def __init__(self, num_heads=4, key_dim=16, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.dropout_rate = dropout
        self.supports_masking = True
        self.query_dense = layers.Dense(num_heads * key_dim, name="query")
        self.kv_dense = layers.Dense(num_heads * key_dim, name="key_value")
        self.dropout = layers.Dropout(dropout)

    def build(self, input_shape):
        self.query_dense.build(input_shape)
        self.kv_dense.build(input_shape)
        self.output_dense = layers.Dense(input_shape[-1], name="output")
        self.output_dense.build((*input_shape[:-1], self.num_heads * self.key_dim))
        self.built = True

    def _split(self, t):
        batch, time = ops.shape(t)[0], ops.shape(t)[1]
        t = ops.reshape(t, (batch, time, self.num_heads, self.key_dim))
        return ops.transpose(t, (0, 2, 1, 3))

    def call(self, x, mask=None, use_causal_mask=False, training=False):
        q = self._split(self.query_dense(x))
        kv = self._split(self.kv_dense(x))

        logits = ops.matmul(q, ops.transpose(kv, (0, 1, 3, 2))) / (self.key_dim ** 0.5)
        if mask is not None:
            keep = ops.cast(mask, logits.dtype)
            logits = logits - 1e9 * (1.0 - keep[:, None, None, :])
        if use_causal_mask:
            steps = ops.arange(ops.shape(x)[1])
            future = ops.cast(steps[None, :] > steps[:, None], logits.dtype)
            logits = logits - 1e9 * future[None, None]

        weights = self.dropout(ops.softmax(logits, axis=-1), training=training)
        context = ops.transpose(ops.matmul(weights, kv), (0, 2, 1, 3))
        context = ops.reshape(context, (ops.shape(x)[0], ops.shape(x)[1], self.num_heads * self.key_dim))
        out = self.output_dense(context)
        if mask is not None:
            out = out * ops.cast(mask, out.dtype)[:, :, None]
        return out

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "dropout": self.dropout_rate,
        }
