from keras import layers, ops


class CausalSelfAttention(layers.Layer):
    """Multi-head causal self-attention for left-to-right models.

    Call arguments:
        inputs: (batch, time, dim)
        padding_mask: optional (batch, time), 1/True for real tokens. Outputs at padded
            positions are set to zero.
    """

    def __init__(self, dim=64, num_heads=4, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        if dim % num_heads:
            raise ValueError("dim must be divisible by num_heads")
        self.dim = dim
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.rate = dropout
        self.qkv = layers.Dense(3 * dim, use_bias=False)
        self.out = layers.Dense(dim)
        self.drop = layers.Dropout(dropout)

    def build(self, input_shape):
        self.qkv.build(input_shape)
        self.out.build((*input_shape[:-1], self.dim))
        super().build(input_shape)

    def call(self, inputs, padding_mask=None, training=None):
        t = ops.shape(inputs)[1]
        x = ops.reshape(self.qkv(inputs), (-1, t, 3, self.num_heads, self.head_dim))
        x = ops.transpose(x, (2, 0, 3, 1, 4))
        q, k, v = x[0], x[1], x[2]

        scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / (float(self.head_dim) ** 0.5)

        steps = ops.arange(t)
        allowed = ops.expand_dims(steps, 1) >= ops.expand_dims(steps, 0)
        allowed = ops.reshape(allowed, (1, 1, t, t))
        if padding_mask is not None:
            padding_mask = ops.cast(padding_mask, "bool")
            allowed = ops.logical_and(allowed, padding_mask[:, None, None, :])

        scores = ops.where(allowed, scores, -1e9)
        weights = self.drop(ops.softmax(scores, axis=-1), training=training)

        y = ops.transpose(ops.matmul(weights, v), (0, 2, 1, 3))
        y = self.out(ops.reshape(y, (-1, t, self.dim)))
        if padding_mask is not None:
            y = y * ops.cast(padding_mask[:, :, None], y.dtype)
        return y

    def get_config(self):
        config = super().get_config()
        config.update({"dim": self.dim, "num_heads": self.num_heads, "dropout": self.rate})
        return config
