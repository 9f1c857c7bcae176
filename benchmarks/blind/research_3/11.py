import keras
from keras import layers, ops


class MultiHeadSelfAttention(layers.Layer):
    """Multi-head self-attention for `(batch, time, features)` inputs."""

    def __init__(self, embed_dim=64, num_heads=8, dropout=0.0, **kwargs):
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
        scaled_score = score / float(self.projection_dim) ** 0.5
        weights = ops.softmax(scaled_score, axis=2)
        weights = self.dropout(weights, training=training)
        return ops.matmul(weights, value)

    def separate_heads(self, x):
        batch_size, seq_len = ops.shape(x)[0], ops.shape(x)[1]
        x = ops.reshape(x, (batch_size, seq_len, self.num_heads, self.projection_dim))
        return ops.transpose(x, (0, 2, 1, 3))

    def call(self, inputs, training=None):
        batch_size, seq_len = ops.shape(inputs)[0], ops.shape(inputs)[1]
        query = self.separate_heads(self.query_dense(inputs))
        key = self.separate_heads(self.key_dense(inputs))
        value = self.separate_heads(self.value_dense(inputs))

        attended = self.attention(query, key, value, training=training)
        attended = ops.transpose(attended, (0, 2, 1, 3))
        concat = ops.reshape(attended, (batch_size, seq_len, self.embed_dim))
        return self.combine_heads(concat)

    def get_config(self):
        config = super().get_config()
        config.update({
            "embed_dim": self.embed_dim,
            "num_heads": self.num_heads,
            "dropout": self.dropout.rate,
        })
        return config
