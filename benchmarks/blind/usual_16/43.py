import keras
from keras import layers, ops


class CausalAttentionBlock(layers.Layer):
    """Post-norm causal attention block.

    Call arguments:
        x: (batch, length, dim)
        padding_mask: optional (batch, length), **1 marks padding** and 0 marks tokens
            (the convention of the TensorFlow tutorials). Sequences are padded on the right.
    """

    def __init__(self, dim=64, num_heads=4, rate=0.0, **kwargs):
        super().__init__(**kwargs)
        self.dim = dim
        self.num_heads = num_heads
        self.depth = dim // num_heads
        self.qkv = layers.Dense(3 * dim, use_bias=False)
        self.proj = layers.Dense(dim)
        self.drop = layers.Dropout(rate)
        self.norm = layers.LayerNormalization(epsilon=1e-6)

    def build(self, input_shape):
        self.qkv.build(input_shape)
        self.proj.build(input_shape)
        self.norm.build(input_shape)
        self.built = True

    def call(self, x, padding_mask=None, training=None):
        batch, length = ops.shape(x)[0], ops.shape(x)[1]
        qkv = ops.reshape(self.qkv(x), (batch, length, 3, self.num_heads, self.depth))
        qkv = ops.transpose(qkv, (2, 0, 3, 1, 4))
        q, k, v = qkv[0], qkv[1], qkv[2]

        logits = ops.einsum("bhqd,bhkd->bhqk", q, k) / (float(self.depth) ** 0.5)
        idx = ops.arange(length)
        future = ops.cast(idx[None, :] > idx[:, None], logits.dtype)
        penalty = future[None, None]
        if padding_mask is not None:
            pad = ops.cast(padding_mask, logits.dtype)[:, None, None, :]
            penalty = ops.maximum(penalty, pad)
        logits = logits + penalty * -1e9

        weights = ops.softmax(logits, axis=-1)
        out = ops.einsum("bhqk,bhkd->bqhd", weights, v)
        out = self.proj(ops.reshape(out, (batch, length, self.dim)))
        return self.norm(x + self.drop(out, training=training))
