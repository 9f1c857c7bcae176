import keras
from keras import layers, ops


@keras.saving.register_keras_serializable(package="minigpt")
class CausalAttention(layers.Layer):
    """Masked multi-head self-attention for the character-level GPT example."""

    def __init__(self, dim=64, num_heads=4, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        if dim % num_heads:
            raise ValueError("dim must be divisible by num_heads")
        self.dim = dim
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.rate = dropout
        self.query = layers.Dense(dim)
        self.key = layers.Dense(dim)
        self.value = layers.Dense(dim)
        self.out = layers.Dense(dim)
        self.drop = layers.Dropout(dropout)

    def build(self, input_shape):
        self.query.build(input_shape)
        self.key.build(input_shape)
        self.value.build(input_shape)
        self.out.build((*input_shape[:-1], self.dim))

    def _split(self, x, length):
        x = ops.reshape(x, (-1, length, self.num_heads, self.head_dim))
        return ops.transpose(x, (0, 2, 1, 3))

    def call(self, x, training=None):
        length = ops.shape(x)[1]
        q = self._split(self.query(x), length)
        k = self._split(self.key(x), length)
        v = self._split(self.value(x), length)

        scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / (self.head_dim ** 0.5)
        keep = ops.cast(ops.triu(ops.ones((length, length))), "bool")
        scores = ops.where(keep, scores, -1e9)
        weights = self.drop(ops.softmax(scores, axis=-1), training=training)

        y = ops.transpose(ops.matmul(weights, v), (0, 2, 1, 3))
        return self.out(ops.reshape(y, (-1, length, self.dim)))

    def get_config(self):
        return {**super().get_config(), "dim": self.dim, "num_heads": self.num_heads, "dropout": self.rate}
