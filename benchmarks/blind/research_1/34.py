import keras
from keras import layers, ops


class CausalSelfAttention(layers.Layer):
    def __init__(self, embed_dim=32, num_heads=4, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        if embed_dim % num_heads != 0:
            raise ValueError(f"embed_dim = {embed_dim} should be divisible by num_heads = {num_heads}")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.query_dense = layers.Dense(embed_dim)
        self.key_dense = layers.Dense(embed_dim)
        self.value_dense = layers.Dense(embed_dim)
        self.combine_heads = layers.Dense(embed_dim)
        self.dropout = layers.Dropout(dropout)

    def causal_attention_mask(self, n_dest, n_src):
        i = ops.arange(n_dest)[:, None]
        j = ops.arange(n_src)[None, :]
        return i <= j - n_src + n_dest

    def separate_heads(self, x, length):
        x = ops.reshape(x, (-1, length, self.num_heads, self.head_dim))
        return ops.transpose(x, (0, 2, 1, 3))

    def call(self, inputs, training=None):
        length = ops.shape(inputs)[1]
        query = self.separate_heads(self.query_dense(inputs), length)
        key = self.separate_heads(self.key_dense(inputs), length)
        value = self.separate_heads(self.value_dense(inputs), length)

        scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))) / (self.head_dim ** 0.5)
        mask = self.causal_attention_mask(length, length)
        scores = ops.where(mask, scores, -1e9)
        weights = self.dropout(ops.softmax(scores, axis=-1), training=training)

        attention = ops.transpose(ops.matmul(weights, value), (0, 2, 1, 3))
        return self.combine_heads(ops.reshape(attention, (-1, length, self.embed_dim)))


class MiniatureGPTBlock(layers.Layer):
    """Decoder block for text generation. Input and output: (batch, length, embed_dim)."""

    def __init__(self, embed_dim=32, num_heads=4, ff_dim=64, rate=0.1, **kwargs):
        super().__init__(**kwargs)
        self.att = CausalSelfAttention(embed_dim, num_heads)
        self.ffn = keras.Sequential([layers.Dense(ff_dim, activation="relu"), layers.Dense(embed_dim)])
        self.layernorm1 = layers.LayerNormalization(epsilon=1e-6)
        self.layernorm2 = layers.LayerNormalization(epsilon=1e-6)
        self.dropout1 = layers.Dropout(rate)
        self.dropout2 = layers.Dropout(rate)

    def call(self, inputs, training=None):
        attention_output = self.dropout1(self.att(inputs, training=training), training=training)
        out1 = self.layernorm1(inputs + attention_output)
        ffn_output = self.dropout2(self.ffn(out1), training=training)
        return self.layernorm2(out1 + ffn_output)
