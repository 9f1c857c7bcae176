import keras
from keras import layers, ops


class TalkingHeadsAttention(layers.Layer):
    """CaiT-style attention with linear maps across the heads before and after the softmax.

    After the second map the rows do not sum to one any more, and they may be negative; this is part of
    talking-heads attention (Shazeer et al., 2020).
    """

    def __init__(self, dim=32, num_heads=4, dropout_rate=0.0, **kwargs):
        super().__init__(**kwargs)
        self.dim = dim
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.scale = self.head_dim ** -0.5
        self.qkv = layers.Dense(dim * 3)
        self.mix_logits = layers.Dense(num_heads)
        self.mix_weights = layers.Dense(num_heads)
        self.attn_drop = layers.Dropout(dropout_rate)
        self.proj = layers.Dense(dim)

    def call(self, x, training=None):
        shape = ops.shape(x)
        b, n = shape[0], shape[1]
        qkv = ops.reshape(self.qkv(x), (b, n, 3, self.num_heads, self.head_dim))
        qkv = ops.transpose(qkv, (2, 0, 3, 1, 4))
        q, k, v = qkv[0] * self.scale, qkv[1], qkv[2]

        attn = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2)))
        attn = self.mix_logits(ops.transpose(attn, (0, 2, 3, 1)))
        attn = ops.softmax(ops.transpose(attn, (0, 3, 1, 2)), axis=-1)
        attn = self.mix_weights(ops.transpose(attn, (0, 2, 3, 1)))
        attn = self.attn_drop(ops.transpose(attn, (0, 3, 1, 2)), training=training)

        out = ops.transpose(ops.matmul(attn, v), (0, 2, 1, 3))
        return self.proj(ops.reshape(out, (b, n, self.dim)))
