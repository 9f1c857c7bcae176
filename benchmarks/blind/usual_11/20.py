from keras import layers, ops


class MultiHeadSelfAttention(layers.Layer):
    """Scaled dot-product self-attention with several heads, for the text classification example."""

    def __init__(self, embed_dim=64, num_heads=4, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        if embed_dim % num_heads != 0:
            raise ValueError(
                f"embedding dimension = {embed_dim} should be divisible by number of heads = {num_heads}"
            )
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.projection_dim = embed_dim // num_heads
        self.query_dense = layers.Dense(embed_dim)
        self.key_dense = layers.Dense(embed_dim)
        self.value_dense = layers.Dense(embed_dim)
        self.combine_heads = layers.Dense(embed_dim)
        self.dropout = layers.Dropout(dropout)

    def attention(self, query, key, value, training=None):
        score = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))
        dim_key = ops.cast(ops.shape(key)[-2], score.dtype)
        scaled_score = score / ops.sqrt(dim_key)
        weights = ops.softmax(scaled_score, axis=-1)
        weights = self.dropout(weights, training=training)
        return ops.matmul(weights, value)

    def separate_heads(self, x):
        seq_len = ops.shape(x)[1]
        x = ops.reshape(x, (-1, seq_len, self.num_heads, self.projection_dim))
        return ops.transpose(x, (0, 2, 1, 3))  # (batch, heads, seq_len, projection_dim)

    def call(self, inputs, training=None):
        # inputs: (batch, seq_len, embed_dim)
        seq_len = ops.shape(inputs)[1]
        query = self.separate_heads(self.query_dense(inputs))
        key = self.separate_heads(self.key_dense(inputs))
        value = self.separate_heads(self.value_dense(inputs))

        attention = self.attention(query, key, value, training=training)
        attention = ops.transpose(attention, (0, 2, 1, 3))
        concat_attention = ops.reshape(attention, (-1, seq_len, self.embed_dim))
        return self.combine_heads(concat_attention)

    def get_config(self):
        config = super().get_config()
        config.update(
            {"embed_dim": self.embed_dim, "num_heads": self.num_heads, "dropout": self.dropout.rate}
        )
        return config
