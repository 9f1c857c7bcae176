import keras
from keras import layers, ops


class SelfAttentionLayer(layers.Layer):
    """Multi-head self-attention for variable length batches.

    ``mask`` is the usual Keras mask of shape (batch, time), True for real steps.
    """

    def __init__(self, embed_dim=64, num_heads=4, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        if embed_dim % num_heads != 0:
            raise ValueError("embed_dim must be divisible by num_heads")
        self.supports_masking = True
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.query_dense = layers.Dense(embed_dim)
        self.key_dense = layers.Dense(embed_dim)
        self.value_dense = layers.Dense(embed_dim)
        self.combine = layers.Dense(embed_dim)
        self.drop = layers.Dropout(dropout)

    def build(self, input_shape):
        self.query_dense.build(input_shape)
        self.key_dense.build(input_shape)
        self.value_dense.build(input_shape)
        self.combine.build((*input_shape[:-1], self.embed_dim))
        self.built = True

    def _separate_heads(self, x):
        batch, length = ops.shape(x)[0], ops.shape(x)[1]
        x = ops.reshape(x, (batch, length, self.num_heads, self.head_dim))
        return ops.transpose(x, (0, 2, 1, 3))

    def call(self, inputs, mask=None, training=None):
        batch, length = ops.shape(inputs)[0], ops.shape(inputs)[1]
        query = self._separate_heads(self.query_dense(inputs))
        key = self._separate_heads(self.key_dense(inputs))
        value = self._separate_heads(self.value_dense(inputs))

        score = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))
        dim_key = ops.cast(ops.shape(key)[-2], self.compute_dtype)
        score = score / ops.sqrt(dim_key)
        if mask is not None:
            keep = ops.cast(mask, "bool")[:, None, None, :]
            score = ops.where(keep, score, ops.full_like(score, -1e9))
        weights = self.drop(ops.softmax(score, axis=-1), training=training)

        attended = ops.transpose(ops.matmul(weights, value), (0, 2, 1, 3))
        attended = ops.reshape(attended, (batch, length, self.embed_dim))
        return self.combine(attended)

    def get_config(self):
        config = super().get_config()
        config.update({"embed_dim": self.embed_dim, "num_heads": self.num_heads, "dropout": self.drop.rate})
        return config
