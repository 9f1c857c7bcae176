import keras
from keras import layers, ops


class MultiHeadSelfAttention(layers.Layer):
    """Multi-head self attention for the text encoder.

    Call arguments:
        inputs: (batch, length, embed_dim)
        mask: optional (batch, length), 1 for tokens and 0 for padding,
            e.g. `ops.not_equal(ids, 0)`.
    """

    def __init__(self, embed_dim=64, num_heads=4, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        if embed_dim % num_heads != 0:
            raise ValueError(f"embed_dim={embed_dim} should be divisible by num_heads={num_heads}")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.projection_dim = embed_dim // num_heads
        self.supports_masking = True
        self.query_dense = layers.Dense(embed_dim)
        self.key_dense = layers.Dense(embed_dim)
        self.value_dense = layers.Dense(embed_dim)
        self.combine_heads = layers.Dense(embed_dim)
        self.dropout = layers.Dropout(dropout)

    def build(self, input_shape):
        for dense in (self.query_dense, self.key_dense, self.value_dense):
            dense.build(input_shape)
        self.combine_heads.build(tuple(input_shape[:-1]) + (self.embed_dim,))
        self.built = True

    def separate_heads(self, x, batch_size, length):
        x = ops.reshape(x, (batch_size, length, self.num_heads, self.projection_dim))
        return ops.transpose(x, (0, 2, 1, 3))

    def call(self, inputs, mask=None, training=None):
        batch_size, length = ops.shape(inputs)[0], ops.shape(inputs)[1]
        query = self.separate_heads(self.query_dense(inputs), batch_size, length)
        key = self.separate_heads(self.key_dense(inputs), batch_size, length)
        value = self.separate_heads(self.value_dense(inputs), batch_size, length)

        score = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))
        score = score / (float(self.projection_dim) ** 0.5)
        if mask is not None:
            mask = ops.cast(mask, score.dtype)
            score = score + mask[:, None, None, :] * -1e9
        weights = ops.softmax(score, axis=-1)
        weights = self.dropout(weights, training=training)

        attention = ops.transpose(ops.matmul(weights, value), (0, 2, 1, 3))
        attention = ops.reshape(attention, (batch_size, length, self.embed_dim))
        return self.combine_heads(attention)
