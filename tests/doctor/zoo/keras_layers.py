"""Two Keras layers, which are torch modules where Keras runs on torch. Import it with KERAS_BACKEND=torch."""

from __future__ import annotations

import math

import keras
from keras import layers, ops
from torch import Tensor

from headwise.functional import attention


class MultiHeadSelfAttention(layers.Layer):
    def __init__(self, embed_dim, num_heads=4):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.projection_dim = embed_dim // num_heads
        self.query_dense = layers.Dense(embed_dim)
        self.key_dense = layers.Dense(embed_dim)
        self.value_dense = layers.Dense(embed_dim)
        self.combine_heads = layers.Dense(embed_dim)

    def separate_heads(self, x, batch_size):
        x = ops.reshape(x, (batch_size, -1, self.num_heads, self.projection_dim))
        return ops.transpose(x, axes=(0, 2, 1, 3))

    def call(self, inputs):
        batch_size = ops.shape(inputs)[0]
        query = self.separate_heads(self.query_dense(inputs), batch_size)
        key = self.separate_heads(self.key_dense(inputs), batch_size)
        value = self.separate_heads(self.value_dense(inputs), batch_size)
        score = ops.matmul(query, ops.transpose(key, axes=(0, 1, 3, 2)))
        weights = ops.softmax(score / math.sqrt(self.projection_dim), axis=-1)
        attention = ops.transpose(ops.matmul(weights, value), axes=(0, 2, 1, 3))
        return self.combine_heads(ops.reshape(attention, (batch_size, -1, self.embed_dim)))


class TextAttention(layers.Layer):
    def __init__(self, embed_dim, num_heads=4):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.depth = embed_dim // num_heads
        self.wq = layers.Dense(embed_dim)
        self.wk = layers.Dense(embed_dim)
        self.wv = layers.Dense(embed_dim)
        self.dense = layers.Dense(embed_dim)

    def split_heads(self, x):
        return ops.transpose(ops.reshape(x, (ops.shape(x)[0], -1, self.num_heads, self.depth)), (0, 2, 1, 3))

    def call(self, x):
        q, k, v = self.split_heads(self.wq(x)), self.split_heads(self.wk(x)), self.split_heads(self.wv(x))
        logits = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / math.sqrt(self.embed_dim)
        out = ops.matmul(ops.softmax(logits, axis=-1), v)
        return self.dense(ops.reshape(ops.transpose(out, (0, 2, 1, 3)), (ops.shape(x)[0], -1, self.embed_dim)))


def built(layer: layers.Layer, width: int = 48) -> layers.Layer:
    """With weights: Keras makes them on the first call."""
    layer(keras.random.normal((2, 5, width)))
    return layer


def formula(layer: layers.Layer, x: Tensor) -> Tensor:
    """What a layer with four projections should compute with its own weights."""
    q, k, v, out = (dense for dense in layer._layers if isinstance(dense, layers.Dense))
    q, k, v = (
        (x @ dense.kernel.value + dense.bias.value).unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)
        for dense in (q, k, v)
    )
    y = attention(q, k, v, kernel="reference").transpose(1, 2).flatten(2)
    return y @ out.kernel.value + out.bias.value
