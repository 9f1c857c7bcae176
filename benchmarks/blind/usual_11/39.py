from keras import layers, ops


class CausalSelfAttention(layers.Layer):
    """Causal self-attention that understands Keras masks.

    ``mask`` is the (batch, seq_len) mask that ``Embedding(mask_zero=True)`` hands on, True for tokens. It
    blocks padded keys, and padded positions come out as zeros. The softmax is taken in float32 under any
    mixed precision policy.
    """

    def __init__(self, dim=64, num_heads=4, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.dim = dim
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.qkv = layers.Dense(3 * dim, use_bias=False)
        self.proj = layers.Dense(dim, use_bias=False)
        self.dropout = layers.Dropout(dropout)

    def call(self, inputs, mask=None, training=None):
        n = ops.shape(inputs)[1]
        qkv = ops.reshape(self.qkv(inputs), (-1, n, 3, self.num_heads, self.head_dim))
        qkv = ops.transpose(qkv, (2, 0, 3, 1, 4))
        q, k, v = qkv[0], qkv[1], qkv[2]

        q = q * self.head_dim ** -0.5
        scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2)))
        scores = ops.cast(scores, "float32")

        index = ops.arange(n)
        keep = ops.expand_dims(index, 1) >= ops.expand_dims(index, 0)
        keep = ops.reshape(keep, (1, 1, n, n))
        if mask is not None:
            token = ops.cast(mask, "bool")
            keep = ops.logical_and(keep, ops.expand_dims(ops.expand_dims(token, 1), 1))
        scores = ops.where(keep, scores, -1e9)

        weights = ops.cast(ops.softmax(scores, axis=-1), v.dtype)
        weights = self.dropout(weights, training=training)
        out = ops.transpose(ops.matmul(weights, v), (0, 2, 1, 3))
        out = self.proj(ops.reshape(out, (-1, n, self.dim)))
        if mask is not None:
            out = out * ops.expand_dims(ops.cast(mask, out.dtype), -1)
        return out

    def get_config(self):
        config = super().get_config()
        config.update({"dim": self.dim, "num_heads": self.num_heads, "dropout": self.dropout.rate})
        return config
