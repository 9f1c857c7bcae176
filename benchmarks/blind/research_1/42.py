import keras
from keras import layers, ops


class MaskedTransformerEncoder(layers.Layer):
    """Post-norm encoder block that honours the Keras mask.

    Args:
        embed_dim: width of the inputs.
        num_heads: number of attention heads.
        ff_dim: width of the feed-forward layer.
        rate: dropout rate.

    Call arguments:
        inputs: `(batch, length, embed_dim)`.
        mask: `(batch, length)`, 1 / True for tokens, 0 / False for padding. It is filled in by
            upstream layers such as `Embedding(mask_zero=True)` and passed on to the next layer.
    """

    def __init__(self, embed_dim=32, num_heads=4, ff_dim=64, rate=0.1, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.ff_dim = ff_dim
        self.rate = rate
        self.head_dim = embed_dim // num_heads
        self.qkv = layers.Dense(3 * embed_dim)
        self.proj = layers.Dense(embed_dim)
        self.ff1 = layers.Dense(ff_dim, activation="gelu")
        self.ff2 = layers.Dense(embed_dim)
        self.norm1 = layers.LayerNormalization(epsilon=1e-6)
        self.norm2 = layers.LayerNormalization(epsilon=1e-6)
        self.attn_dropout = layers.Dropout(rate)
        self.dropout1 = layers.Dropout(rate)
        self.dropout2 = layers.Dropout(rate)

    def attend(self, x, mask, training):
        length = ops.shape(x)[1]
        qkv = ops.reshape(self.qkv(x), (-1, length, 3, self.num_heads, self.head_dim))
        qkv = ops.transpose(qkv, (2, 0, 3, 1, 4))
        q, k, v = qkv[0], qkv[1], qkv[2]

        logits = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) * self.head_dim ** -0.5
        if mask is not None:
            mask = ops.cast(mask, logits.dtype)
            logits = logits + (1.0 - mask[:, None, None, :]) * -1e9
        weights = self.attn_dropout(ops.softmax(logits, axis=-1), training=training)
        out = ops.transpose(ops.matmul(weights, v), (0, 2, 1, 3))
        return self.proj(ops.reshape(out, (-1, length, self.embed_dim)))

    def call(self, inputs, mask=None, training=None):
        x = self.norm1(inputs + self.dropout1(self.attend(inputs, mask, training), training=training))
        return self.norm2(x + self.dropout2(self.ff2(self.ff1(x)), training=training))

    def get_config(self):
        config = super().get_config()
        config.update(
            {"embed_dim": self.embed_dim, "num_heads": self.num_heads, "ff_dim": self.ff_dim, "rate": self.rate}
        )
        return config
