import keras
from keras import layers, ops


class TransformerEncoderBlock(layers.Layer):
    """Post-norm encoder block.

    Call arguments:
        x: float tensor (batch, steps, embed_dim)
        mask: optional boolean tensor (batch, steps); False marks padding.
    """

    def __init__(self, embed_dim=64, num_heads=4, ff_dim=128, rate=0.1, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.projection_dim = embed_dim // num_heads
        self.query_dense = layers.Dense(embed_dim)
        self.key_dense = layers.Dense(embed_dim)
        self.value_dense = layers.Dense(embed_dim)
        self.combine_heads = layers.Dense(embed_dim)
        self.ffn = keras.Sequential([layers.Dense(ff_dim, activation="relu"), layers.Dense(embed_dim)])
        self.layernorm1 = layers.LayerNormalization(epsilon=1e-6)
        self.layernorm2 = layers.LayerNormalization(epsilon=1e-6)
        self.dropout1 = layers.Dropout(rate)
        self.dropout2 = layers.Dropout(rate)

    def separate_heads(self, x, steps):
        x = ops.reshape(x, (-1, steps, self.num_heads, self.projection_dim))
        return ops.transpose(x, axes=(0, 2, 1, 3))

    def attend(self, x, mask):
        steps = ops.shape(x)[1]
        query = self.separate_heads(self.query_dense(x), steps)
        key = self.separate_heads(self.key_dense(x), steps)
        value = self.separate_heads(self.value_dense(x), steps)

        score = ops.matmul(query, ops.transpose(key, axes=(0, 1, 3, 2)))
        score = score / (self.projection_dim ** 0.5)
        if mask is not None:
            mask = ops.cast(mask, score.dtype)
            score = score + (1.0 - mask[:, None, :, None]) * -1e9
        weights = ops.softmax(score, axis=-1)

        attention = ops.transpose(ops.matmul(weights, value), axes=(0, 2, 1, 3))
        return self.combine_heads(ops.reshape(attention, (-1, steps, self.embed_dim)))

    def call(self, x, mask=None, training=None):
        attn_output = self.dropout1(self.attend(x, mask), training=training)
        out1 = self.layernorm1(x + attn_output)
        ffn_output = self.dropout2(self.ffn(out1), training=training)
        return self.layernorm2(out1 + ffn_output)
