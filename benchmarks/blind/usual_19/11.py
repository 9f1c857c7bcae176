import math

import keras
from keras import layers, ops


class SelfAttentionLayer(layers.Layer):
    """Multi-head self-attention for padded token sequences.

    `mask` is the boolean mask that `Embedding(mask_zero=True)` hands down: shape (batch, seq),
    True for real tokens and False for padding.
    """

    def __init__(self, dim=64, num_heads=4, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        if dim % num_heads:
            raise ValueError("dim must be a multiple of num_heads")
        self.dim = dim
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.supports_masking = True
        self.query_dense = layers.Dense(dim)
        self.key_dense = layers.Dense(dim)
        self.value_dense = layers.Dense(dim)
        self.out_dense = layers.Dense(dim)
        self.drop = layers.Dropout(dropout)

    def _split(self, x):
        shape = ops.shape(x)
        x = ops.reshape(x, (shape[0], shape[1], self.num_heads, self.head_dim))
        return ops.transpose(x, (0, 2, 1, 3))

    def call(self, inputs, mask=None, training=None):
        shape = ops.shape(inputs)
        q = self._split(self.query_dense(inputs))
        k = self._split(self.key_dense(inputs))
        v = self._split(self.value_dense(inputs))

        scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / math.sqrt(self.head_dim)
        if mask is not None:
            mask = ops.cast(mask, scores.dtype)
            scores = scores + mask[:, None, None, :] * -1e9

        weights = ops.softmax(scores, axis=-1)
        weights = self.drop(weights, training=training)

        context = ops.transpose(ops.matmul(weights, v), (0, 2, 1, 3))
        context = ops.reshape(context, (shape[0], shape[1], self.dim))
        return self.out_dense(context)

    def get_config(self):
        config = super().get_config()
        config.update({"dim": self.dim, "num_heads": self.num_heads, "dropout": self.drop.rate})
        return config
