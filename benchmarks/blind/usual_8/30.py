import math

import keras
from keras import layers, ops


class EncoderLayer(layers.Layer):
    """Post-norm Transformer encoder layer.

    The mask that arrives from ``Embedding(mask_zero=True)`` is True for real tokens. It is turned
    around once, so that 1 marks padding, and padding gets -1e9 added to its logits.
    """

    def __init__(self, d_model=64, num_heads=4, dff=128, rate=0.1, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.d_model = d_model
        self.num_heads = num_heads
        self.depth = d_model // num_heads
        self.wq = layers.Dense(d_model)
        self.wk = layers.Dense(d_model)
        self.wv = layers.Dense(d_model)
        self.dense = layers.Dense(d_model)
        self.ffn1 = layers.Dense(dff, activation="relu")
        self.ffn2 = layers.Dense(d_model)
        self.layernorm1 = layers.LayerNormalization(epsilon=1e-6)
        self.layernorm2 = layers.LayerNormalization(epsilon=1e-6)
        self.dropout1 = layers.Dropout(rate)
        self.dropout2 = layers.Dropout(rate)

    def split_heads(self, x, batch_size, seq_len):
        x = ops.reshape(x, (batch_size, seq_len, self.num_heads, self.depth))
        return ops.transpose(x, (0, 2, 1, 3))

    def attention(self, x, mask):
        shape = ops.shape(x)
        b, t = shape[0], shape[1]
        q = self.split_heads(self.wq(x), b, t)
        k = self.split_heads(self.wk(x), b, t)
        v = self.split_heads(self.wv(x), b, t)

        logits = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / math.sqrt(self.depth)
        if mask is not None:
            is_padding = 1.0 - ops.cast(mask, logits.dtype)
            logits = logits + is_padding[:, None, None, :] * -1e9
        weights = ops.softmax(logits, axis=-1)

        y = ops.transpose(ops.matmul(weights, v), (0, 2, 1, 3))
        return self.dense(ops.reshape(y, (b, t, self.d_model)))

    def call(self, x, mask=None, training=None):
        attn = self.dropout1(self.attention(x, mask), training=training)
        out1 = self.layernorm1(x + attn)
        ffn = self.dropout2(self.ffn2(self.ffn1(out1)), training=training)
        return self.layernorm2(out1 + ffn)
