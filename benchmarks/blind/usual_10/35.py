from keras import layers, ops


class MaskedSelfAttention(layers.Layer):
    """Multi-head self-attention that respects the mask of ``Embedding(mask_zero=True)``.

    Args:
        embed_dim: Size of the input features.
        num_heads: Number of heads.
        dropout: Dropout rate of the attention weights.

    Call arguments:
        inputs: Tensor of shape ``(batch, time, embed_dim)``.
        mask: Optional boolean tensor of shape ``(batch, time)``. ``False`` steps are ignored.
    """

    def __init__(self, embed_dim=64, num_heads=4, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.query_dense = layers.Dense(embed_dim)
        self.key_dense = layers.Dense(embed_dim)
        self.value_dense = layers.Dense(embed_dim)
        self.combine_heads = layers.Dense(embed_dim)
        self.dropout = layers.Dropout(dropout)
        self.supports_masking = True

    def separate_heads(self, x):
        shape = ops.shape(x)
        x = ops.reshape(x, (shape[0], shape[1], self.num_heads, self.head_dim))
        return ops.transpose(x, (0, 2, 1, 3))

    def call(self, inputs, mask=None, training=None):
        query = self.separate_heads(self.query_dense(inputs))
        key = self.separate_heads(self.key_dense(inputs))
        value = self.separate_heads(self.value_dense(inputs))

        score = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))
        score = score / float(self.head_dim) ** 0.5
        if mask is not None:
            mask = ops.cast(mask, score.dtype)[:, None, :, None]
            score = score + (1.0 - mask) * -1e9

        weights = ops.softmax(score, axis=-1)
        weights = self.dropout(weights, training=training)
        attention = ops.transpose(ops.matmul(weights, value), (0, 2, 1, 3))

        shape = ops.shape(inputs)
        concat = ops.reshape(attention, (shape[0], shape[1], self.embed_dim))
        return self.combine_heads(concat)

    def get_config(self):
        config = super().get_config()
        config.update({"embed_dim": self.embed_dim, "num_heads": self.num_heads, "dropout": self.dropout.rate})
        return config
