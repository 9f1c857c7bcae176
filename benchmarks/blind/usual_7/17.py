import math

import keras
from keras import layers, ops


class TransformerEncoderBlock(layers.Layer):
    """Encoder block that honours the Keras mask of an upstream ``Embedding(mask_zero=True)``.

    Args:
        embed_dim: width of the tokens.
        num_heads: number of heads.
        ff_dim: width of the feed-forward layer.
        rate: dropout rate.

    Call arguments:
        inputs: ``(batch, time, embed_dim)``
        mask: boolean ``(batch, time)``, as computed by Keras (``True`` at real timesteps).
    """

    def __init__(self, embed_dim=64, num_heads=4, ff_dim=128, rate=0.1, **kwargs):
        super().__init__(**kwargs)
        if embed_dim % num_heads:
            raise ValueError("embed_dim should be divisible by num_heads")
        self.supports_masking = True
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.query = layers.Dense(embed_dim)
        self.key_proj = layers.Dense(embed_dim)
        self.value = layers.Dense(embed_dim)
        self.combine = layers.Dense(embed_dim)
        self.ffn1 = layers.Dense(ff_dim, activation="relu")
        self.ffn2 = layers.Dense(embed_dim)
        self.norm1 = layers.LayerNormalization(epsilon=1e-6)
        self.norm2 = layers.LayerNormalization(epsilon=1e-6)
        self.drop1 = layers.Dropout(rate)
        self.drop2 = layers.Dropout(rate)

    def _split(self, x):
        b, t = ops.shape(x)[0], ops.shape(x)[1]
        x = ops.reshape(x, (b, t, self.num_heads, self.head_dim))
        return ops.transpose(x, (0, 2, 1, 3))

    def attention(self, x, mask):
        q, k, v = self._split(self.query(x)), self._split(self.key_proj(x)), self._split(self.value(x))
        logits = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / math.sqrt(self.head_dim)
        if mask is not None:
            mask = ops.cast(mask, logits.dtype)
            logits = logits + mask[:, None, None, :] * -1e9
        weights = ops.softmax(logits, axis=-1)
        out = ops.transpose(ops.matmul(weights, v), (0, 2, 1, 3))
        b, t = ops.shape(x)[0], ops.shape(x)[1]
        return self.combine(ops.reshape(out, (b, t, self.embed_dim)))

    def call(self, inputs, mask=None, training=None):
        attn = self.drop1(self.attention(inputs, mask), training=training)
        out1 = self.norm1(inputs + attn)
        ffn = self.drop2(self.ffn2(self.ffn1(out1)), training=training)
        return self.norm2(out1 + ffn)
