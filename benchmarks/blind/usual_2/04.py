import math

from keras import layers, ops


class MultiHeadSelfAttention(layers.Layer):
    """Multi-head self-attention for the text encoder.

    Args:
        embed_dim: width of the input and of the output.
        num_heads: number of heads, has to divide embed_dim.
        dropout: dropout rate of the attention weights.
    """

    def __init__(self, embed_dim=128, num_heads=8, dropout=0.1, **kwargs):
        super().__init__(**kwargs)
        if embed_dim % num_heads != 0:
            raise ValueError("embed_dim must be divisible by num_heads")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.depth = embed_dim // num_heads
        self.query_dense = layers.Dense(embed_dim)
        self.key_dense = layers.Dense(embed_dim)
        self.value_dense = layers.Dense(embed_dim)
        self.combine_heads = layers.Dense(embed_dim)
        self.dropout = layers.Dropout(dropout)

    def separate_heads(self, x):
        batch_size, seq_len = ops.shape(x)[0], ops.shape(x)[1]
        return ops.reshape(x, (batch_size, self.num_heads, seq_len, self.depth))

    def call(self, inputs, training=None):
        batch_size, seq_len = ops.shape(inputs)[0], ops.shape(inputs)[1]

        query = self.separate_heads(self.query_dense(inputs))
        key = self.separate_heads(self.key_dense(inputs))
        value = self.separate_heads(self.value_dense(inputs))

        score = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))
        weights = ops.softmax(score / math.sqrt(self.depth), axis=-1)
        weights = self.dropout(weights, training=training)

        attention = ops.matmul(weights, value)
        attention = ops.transpose(attention, (0, 2, 1, 3))
        concat = ops.reshape(attention, (batch_size, seq_len, self.embed_dim))
        return self.combine_heads(concat)

    def get_config(self):
        config = super().get_config()
        config.update({"embed_dim": self.embed_dim, "num_heads": self.num_heads, "dropout": self.dropout.rate})
        return config
