"""In keras.ops, for any backend: self-attention with padding as on keras.io, and causal attention by einsum."""

import keras
from keras import layers, ops


class MultiHeadSelfAttention(layers.Layer):
    """Self-attention in which padding is not attended to."""

    def __init__(self, embed_dim, num_heads=4, dropout=0.1, wrong="", **kwargs):
        super().__init__(**kwargs)
        self.embed_dim, self.num_heads, self.wrong = embed_dim, num_heads, wrong
        self.projection_dim = embed_dim // num_heads
        self.query_dense = layers.Dense(embed_dim)
        self.key_dense = layers.Dense(embed_dim)
        self.value_dense = layers.Dense(embed_dim)
        self.combine_heads = layers.Dense(embed_dim)
        self.dropout = layers.Dropout(dropout)
        self.supports_masking = True

    def attention(self, query, key, value, mask, training):
        score = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))
        scaled = score / float(self.embed_dim if self.wrong == "scale of the width" else self.projection_dim) ** 0.5
        if mask is not None and self.wrong != "mask ignored":
            mask = ops.cast(mask, scaled.dtype)
            mask = 1.0 - mask if self.wrong == "mask turned round" else mask
            mask = mask[:, None, :, None] if self.wrong == "mask over queries" else mask[:, None, None, :]
            scaled = scaled + (1.0 - mask) * -1e9
        weights = ops.softmax(scaled, axis=-2 if self.wrong == "softmax over queries" else -1)
        weights = self.dropout(weights, training=True if self.wrong == "dropout always on" else training)
        return ops.matmul(weights, value)

    def separate_heads(self, x):
        batch, length = ops.shape(x)[0], ops.shape(x)[1]
        if self.wrong == "heads split without transpose":
            return ops.reshape(x, (batch, self.num_heads, length, self.projection_dim))
        x = ops.reshape(x, (batch, length, self.num_heads, self.projection_dim))
        return ops.transpose(x, (0, 2, 1, 3))

    def call(self, inputs, mask=None, training=None):
        """mask: bool [batch, length], True = a real token."""
        query = self.separate_heads(self.query_dense(inputs))
        key = self.separate_heads(self.key_dense(inputs))
        value = self.separate_heads((self.key_dense if self.wrong == "keys for values" else self.value_dense)(inputs))
        attended = self.attention(query, key, value, mask, training)
        if self.wrong != "heads merged without transpose":
            attended = ops.transpose(attended, (0, 2, 1, 3))
        shape = (ops.shape(inputs)[0], ops.shape(inputs)[1], self.embed_dim)
        return self.combine_heads(ops.reshape(attended, shape))


class CausalSelfAttention(layers.Layer):
    """Causal self-attention, with weights of its own."""

    def __init__(self, width, heads, wrong="", **kwargs):
        super().__init__(**kwargs)
        self.width, self.heads, self.wrong = width, heads, wrong
        self.head_dim = width // heads

    def build(self, input_shape):
        self.width_in = input_shape[-1]
        shape = (input_shape[-1], self.heads, self.head_dim)
        self.wq, self.wk, self.wv = (self.add_weight(shape=shape, name=name) for name in ("wq", "wk", "wv"))
        self.wo = self.add_weight(shape=(self.heads, self.head_dim, self.width), name="wo")

    def call(self, x):
        q, k, v = (ops.einsum("bnm,mhd->bnhd", x, w) for w in (self.wq, self.wk, self.wv))
        if self.wrong == "queries for keys":
            k = q
        scores = ops.einsum("bqhd,bkhd->bhqk", q, k)
        if self.wrong != "no factor":
            scores = scores * self.head_dim**-0.5
        length = ops.shape(x)[1]
        i, j = ops.arange(length)[:, None], ops.arange(length)[None, :]
        seen = {"one ahead": j <= i + 1, "future": j >= i, "not causal": j >= 0}.get(self.wrong, j <= i)
        scores = ops.where(seen, scores, keras.config.epsilon() * -1e16)
        weights = ops.softmax(scores, axis=1 if self.wrong == "softmax over heads" else -1)
        pattern = "bhqk,bqhd->bkhd" if self.wrong == "weights turned" else "bhqk,bkhd->bqhd"
        return ops.einsum("bqhd,hdm->bqm", ops.einsum(pattern, weights, v), self.wo)
