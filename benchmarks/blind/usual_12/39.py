import keras
from keras import layers, ops


class MaskedAttentionBlock(layers.Layer):
    """Post-norm encoder block that honours the Keras mask of an upstream Embedding.

    The mask has the Keras meaning, True for real time steps. It is passed on unchanged.
    """

    def __init__(self, embed_dim=64, num_heads=4, ff_dim=128, rate=0.1, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.ff_dim = ff_dim
        self.rate = rate
        self.qkv = layers.Dense(3 * embed_dim, use_bias=False)
        self.out = layers.Dense(embed_dim)
        self.ff1 = layers.Dense(ff_dim, activation="gelu")
        self.ff2 = layers.Dense(embed_dim)
        self.norm1 = layers.LayerNormalization(epsilon=1e-6)
        self.norm2 = layers.LayerNormalization(epsilon=1e-6)
        self.drop_attn = layers.Dropout(rate)
        self.drop1 = layers.Dropout(rate)
        self.drop2 = layers.Dropout(rate)

    def _attend(self, x, mask, training):
        b, t = ops.shape(x)[0], ops.shape(x)[1]
        qkv = ops.reshape(self.qkv(x), (b, t, 3, self.num_heads, self.head_dim))
        q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        scores = ops.einsum("bqhd,bkhd->bhqk", q, k) * self.head_dim**-0.5
        if mask is not None:
            keep = ops.cast(mask, scores.dtype)
            scores = scores + (1.0 - keep[:, None, None, :]) * -1e9
        weights = self.drop_attn(ops.softmax(scores, axis=-1), training=training)
        y = ops.einsum("bhqk,bkhd->bqhd", weights, v)
        return self.out(ops.reshape(y, (b, t, self.embed_dim)))

    def call(self, inputs, mask=None, training=None):
        y = self.drop1(self._attend(inputs, mask, training), training=training)
        x = self.norm1(inputs + y)
        y = self.drop2(self.ff2(self.ff1(x)), training=training)
        return self.norm2(x + y)

    def get_config(self):
        config = super().get_config()
        config.update(
            embed_dim=self.embed_dim, num_heads=self.num_heads, ff_dim=self.ff_dim, rate=self.rate
        )
        return config
