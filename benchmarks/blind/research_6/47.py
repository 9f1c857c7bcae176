from keras import layers, ops


class DocumentSelfAttention(layers.Layer):
    """Multi-head self-attention for padded token sequences.

    Args:
        dim: model width.
        num_heads: number of heads.

    Call arguments:
        x: (batch, length, dim)
        attention_mask: (batch, length); 1 for tokens to attend to, 0 for padding.
    """

    def __init__(self, dim=64, num_heads=4, **kwargs):
        super().__init__(**kwargs)
        self.dim = dim
        self.num_heads = num_heads
        self.depth = dim // num_heads
        self.wq = layers.Dense(dim)
        self.wk = layers.Dense(dim)
        self.wv = layers.Dense(dim)
        self.wo = layers.Dense(dim)

    def build(self, input_shape):
        for dense in (self.wq, self.wk, self.wv, self.wo):
            dense.build((*input_shape[:-1], self.dim))
        super().build(input_shape)

    def split_heads(self, t):
        length = ops.shape(t)[1]
        t = ops.reshape(t, (-1, length, self.num_heads, self.depth))
        return ops.transpose(t, (0, 2, 1, 3))

    def call(self, x, attention_mask=None):
        q = self.split_heads(self.wq(x))
        k = self.split_heads(self.wk(x))
        v = self.split_heads(self.wv(x))

        scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2)))
        scores = scores / (self.depth ** 0.5)
        if attention_mask is not None:
            mask = ops.cast(attention_mask, scores.dtype)[:, None, None, :]
            scores = scores + mask * -1e9
        weights = ops.softmax(scores, axis=-1)

        context = ops.transpose(ops.matmul(weights, v), (0, 2, 1, 3))
        context = ops.reshape(context, (-1, ops.shape(x)[1], self.dim))
        return self.wo(context)
