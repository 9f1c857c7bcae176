"""In plain TensorFlow: cross-attention by tf.einsum."""

import tensorflow as tf


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
