import keras
from keras import layers, ops


class DecoderBlock(keras.layers.Layer):
    """Post-norm decoder block: causal self-attention, cross-attention, feed-forward.

    ``memory_mask`` is (batch, src_len) with True for real source tokens. Note that Keras'
    MultiHeadAttention is called as (query, value, key) and that its mask keeps where True.
    """

    def __init__(self, dim=64, num_heads=4, ff_dim=128, rate=0.1, **kwargs):
        super().__init__(**kwargs)
        key_dim = dim // num_heads
        self.self_attn = layers.MultiHeadAttention(num_heads, key_dim, dropout=rate)
        self.cross_attn = layers.MultiHeadAttention(num_heads, key_dim, dropout=rate)
        self.ffn_in = layers.Dense(ff_dim, activation="relu")
        self.ffn_out = layers.Dense(dim)
        self.norm1 = layers.LayerNormalization(epsilon=1e-5)
        self.norm2 = layers.LayerNormalization(epsilon=1e-5)
        self.norm3 = layers.LayerNormalization(epsilon=1e-5)
        self.drop = layers.Dropout(rate)

    def call(self, x, memory, memory_pos=None, memory_mask=None, training=None):
        a = self.self_attn(x, x, use_causal_mask=True, training=training)
        x = self.norm1(x + self.drop(a, training=training))

        keys = memory if memory_pos is None else memory + memory_pos
        attention_mask = None
        if memory_mask is not None:
            attention_mask = ops.expand_dims(ops.cast(memory_mask, "bool"), axis=1)
        c = self.cross_attn(x, memory, keys, attention_mask=attention_mask, training=training)
        x = self.norm2(x + self.drop(c, training=training))

        f = self.ffn_out(self.ffn_in(x))
        return self.norm3(x + self.drop(f, training=training))
