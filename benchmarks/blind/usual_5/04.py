import keras
from keras import layers, ops


class MultiHeadSelfAttention(layers.Layer):
    """Multi-head self attention.

    Call arguments:
        inputs: (batch, time, embed_dim)
        mask: boolean (batch, time), as produced by ``Embedding(mask_zero=True)``.
    """

    def __init__(self, embed_dim=64, num_heads=4, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        if embed_dim % num_heads:
            raise ValueError("embed_dim must be divisible by num_heads")
        self.supports_masking = True
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.projection_dim = embed_dim // num_heads
        self.query_dense = layers.Dense(embed_dim)
        self.key_dense = layers.Dense(embed_dim)
        self.value_dense = layers.Dense(embed_dim)
        self.combine_heads = layers.Dense(embed_dim)
        self.dropout = layers.Dropout(dropout)

    def attention(self, query, key, value, mask=None, training=None):
        score = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))
        scaled_score = score / float(self.projection_dim) ** 0.5
        if mask is not None:
            mask = ops.cast(mask, scaled_score.dtype)
            scaled_score = scaled_score + mask[:, None, None, :] * -1e9
        weights = ops.softmax(scaled_score, axis=-1)
        weights = self.dropout(weights, training=training)
        return ops.matmul(weights, value)

    def separate_heads(self, x):
        batch, time = ops.shape(x)[0], ops.shape(x)[1]
        x = ops.reshape(x, (batch, time, self.num_heads, self.projection_dim))
        return ops.transpose(x, (0, 2, 1, 3))

    def call(self, inputs, mask=None, training=None):
        batch, time = ops.shape(inputs)[0], ops.shape(inputs)[1]
        query = self.separate_heads(self.query_dense(inputs))
        key = self.separate_heads(self.key_dense(inputs))
        value = self.separate_heads(self.value_dense(inputs))
        attended = self.attention(query, key, value, mask=mask, training=training)
        attended = ops.transpose(attended, (0, 2, 1, 3))
        attended = ops.reshape(attended, (batch, time, self.embed_dim))
        return self.combine_heads(attended)

    def get_config(self):
        config = super().get_config()
        config.update({"embed_dim": self.embed_dim, "num_heads": self.num_heads})
        return config
