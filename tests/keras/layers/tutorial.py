"""In plain TensorFlow, as the Transformer tutorial of tensorflow.org has it, and cross-attention by tf.einsum."""

import tensorflow as tf


def scaled_dot_product_attention(q, k, v, mask, wrong=""):
    """softmax(q kᵀ / sqrt(d)) v, and the weights; the mask is multiplied with -1e9 and added."""
    logits = tf.matmul(q, k, transpose_b=True)
    dk = tf.cast(tf.shape(k)[-1], logits.dtype)
    if wrong != "no factor":
        logits = logits / tf.math.sqrt(dk)
    if mask is not None and wrong != "mask ignored":
        mask = tf.cast(mask, logits.dtype)
        mask = 1.0 - mask if wrong == "mask turned round" else mask
        logits += mask if wrong == "mask added" else mask * -1e9
    weights = tf.nn.softmax(logits, axis={"softmax over queries": -2, "softmax over heads": 1}.get(wrong, -1))
    return tf.matmul(weights, v), weights


class MultiHeadAttention(tf.keras.layers.Layer):
    """Multi-head attention of queries q to keys k and values v."""

    def __init__(self, d_model, num_heads, wrong=""):
        super().__init__()
        self.num_heads, self.d_model, self.wrong = num_heads, d_model, wrong
        assert d_model % num_heads == 0
        self.depth = d_model // num_heads
        self.wq = tf.keras.layers.Dense(d_model)
        self.wk = tf.keras.layers.Dense(d_model)
        self.wv = tf.keras.layers.Dense(d_model)
        self.dense = tf.keras.layers.Dense(d_model)

    def split_heads(self, x, batch_size):
        if self.wrong == "heads split without transpose":
            return tf.reshape(x, (batch_size, self.num_heads, -1, self.depth))
        x = tf.reshape(x, (batch_size, -1, self.num_heads, self.depth))
        return tf.transpose(x, perm=[0, 2, 1, 3])

    def call(self, v, k, q, mask):
        """mask: 1 = masked, broadcast to [batch, heads, queries, keys]."""
        batch_size = tf.shape(q)[0]
        q = self.split_heads(self.wq(q), batch_size)
        v = self.split_heads(self.wk(v) if self.wrong == "key kernel for values" else self.wv(v), batch_size)
        k = self.split_heads(self.wk(k), batch_size)
        if self.wrong == "keys for values":
            v = k
        out, weights = scaled_dot_product_attention(q, k, v, mask, self.wrong)
        if self.wrong != "heads merged without transpose":
            out = tf.transpose(out, perm=[0, 2, 1, 3])
        out = tf.reshape(out, (batch_size, -1, self.d_model))
        return self.dense(out), weights


class CrossAttention(tf.keras.layers.Layer):
    """The tokens of x attend to those of context."""

    def __init__(self, width, heads, dropout=0.1, wrong=""):
        super().__init__()
        self.heads, self.head_dim, self.wrong = heads, width // heads, wrong
        self.query, self.key, self.value = (tf.keras.layers.Dense(width, use_bias=False) for _ in range(3))
        self.out = tf.keras.layers.Dense(width)
        self.dropout = tf.keras.layers.Dropout(dropout)

    def call(self, x, context, padding_mask=None, training=False):
        """padding_mask: [batch, keys], True = padding, which nobody attends to."""

        def split(t):
            return tf.reshape(t, (tf.shape(t)[0], tf.shape(t)[1], self.heads, self.head_dim))

        q, k, v = split(self.query(x)), split(self.key(context)), split(self.value(context))
        root = float(self.heads * self.head_dim if self.wrong == "scale of the width" else self.head_dim) ** 0.5
        scores = tf.einsum("bqhd,bkhd->bhqk", q, k) / root
        if padding_mask is not None:
            hidden = tf.cast(padding_mask, tf.bool)
            if self.wrong == "mask turned round":
                hidden = tf.logical_not(hidden)
            if self.wrong != "weights multiplied":
                scores = tf.where(hidden[:, tf.newaxis, tf.newaxis, :], -1e9, scores)
        weights = tf.nn.softmax(scores, axis=-1)
        if self.wrong == "weights multiplied" and padding_mask is not None:
            weights = weights * (1.0 - tf.cast(hidden, weights.dtype))[:, tf.newaxis, tf.newaxis, :]
        weights = self.dropout(weights, training=True if self.wrong == "dropout always on" else training)
        y = tf.einsum("bhqk,bkhd->bqhd", weights, v)
        return self.out(tf.reshape(y, (tf.shape(x)[0], tf.shape(x)[1], self.heads * self.head_dim)))
