import keras
from keras import layers, ops


@keras.saving.register_keras_serializable(package="tutorials")
class CausalTransformerBlock(layers.Layer):
    """Pre-norm GPT block for Keras 3.

    A mask of shape ``(batch, time)`` (True = real token) is combined with the causal mask. Fully
    hidden rows (leading padding) fall back to a uniform distribution and stay finite.
    """

    def __init__(self, dim=64, heads=4, ff_dim=256, rate=0.1, **kwargs):
        super().__init__(**kwargs)
        self.dim, self.heads, self.ff_dim, self.rate = dim, heads, ff_dim, rate
        self.qkv = layers.Dense(3 * dim, use_bias=False)
        self.proj = layers.Dense(dim)
        self.fc1 = layers.Dense(ff_dim, activation="gelu")
        self.fc2 = layers.Dense(dim)
        self.ln1 = layers.LayerNormalization(epsilon=1e-5)
        self.ln2 = layers.LayerNormalization(epsilon=1e-5)
        self.attn_drop = layers.Dropout(rate)
        self.drop1 = layers.Dropout(rate)
        self.drop2 = layers.Dropout(rate)
        self.supports_masking = True

    def attend(self, x, mask, training):
        shape = ops.shape(x)
        b, t = shape[0], shape[1]
        qkv = ops.reshape(self.qkv(x), (b, t, 3, self.heads, self.dim // self.heads))
        qkv = ops.transpose(qkv, (2, 0, 3, 1, 4))
        q, k, v = qkv[0], qkv[1], qkv[2]

        logits = ops.einsum("bhid,bhjd->bhij", q, k) * (self.dim // self.heads) ** -0.5
        pos = ops.arange(t)
        allowed = (pos[:, None] >= pos[None, :])[None, None]
        if mask is not None:
            allowed = ops.logical_and(allowed, ops.cast(mask, "bool")[:, None, None, :])
        logits = ops.where(allowed, ops.cast(logits, "float32"), -1e9)
        weights = ops.cast(ops.softmax(logits, axis=-1), v.dtype)
        weights = self.attn_drop(weights, training=training)
        y = ops.einsum("bhij,bhjd->bihd", weights, v)
        return self.proj(ops.reshape(y, (b, t, self.dim)))

    def call(self, inputs, mask=None, training=None):
        x = inputs + self.drop1(self.attend(self.ln1(inputs), mask, training), training=training)
        return x + self.drop2(self.fc2(self.fc1(self.ln2(x))), training=training)

    def get_config(self):
        return {
            **super().get_config(),
            "dim": self.dim,
            "heads": self.heads,
            "ff_dim": self.ff_dim,
            "rate": self.rate,
        }
