import keras
from keras import layers, ops


class CrossAttentionDecoderBlock(layers.Layer):
    """Post-norm decoder block of the original Transformer.

    call arguments:
        inputs: `[x, memory]`, `(batch, tgt, dim)` and `(batch, src, dim)`
        memory_mask: `(batch, src)`, 1 for tokens and 0 for padding

    Written out instead of `keras.layers.MultiHeadAttention` because the attention
    weights of the cross attention are part of the result.
    """

    def __init__(self, dim=64, num_heads=4, ff_dim=128, rate=0.1, **kwargs):
        super().__init__(**kwargs)
        self.dim = dim
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.self_qkv = [layers.Dense(dim) for _ in range(3)]
        self.cross_qkv = [layers.Dense(dim) for _ in range(3)]
        self.self_out = layers.Dense(dim)
        self.cross_out = layers.Dense(dim)
        self.ff1 = layers.Dense(ff_dim, activation="relu")
        self.ff2 = layers.Dense(dim)
        self.norms = [layers.LayerNormalization(epsilon=1e-6) for _ in range(3)]
        self.drop = layers.Dropout(rate)

    def _split(self, x):
        b, t = ops.shape(x)[0], ops.shape(x)[1]
        return ops.transpose(ops.reshape(x, (b, t, self.num_heads, self.head_dim)), (0, 2, 1, 3))

    def _attend(self, q, k, v, penalty, training):
        scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / (self.head_dim ** 0.5)
        if penalty is not None:
            scores = scores - penalty
        weights = ops.softmax(scores, axis=-1)
        out = ops.matmul(self.drop(weights, training=training), v)
        out = ops.transpose(out, (0, 2, 1, 3))
        out = ops.reshape(out, (ops.shape(out)[0], ops.shape(out)[1], self.dim))
        return out, weights

    def call(self, inputs, memory_mask=None, training=None):
        x, memory = inputs
        t = ops.shape(x)[1]

        # the penalties are subtracted: large where a key is out of bounds, else zero
        idx = ops.arange(t)
        ahead = ops.cast(idx[None, :] > idx[:, None], "float32")[None, None] * 1e9
        pad = None
        if memory_mask is not None:
            pad = (1.0 - ops.cast(memory_mask, "float32"))[:, None, None, :] * 1e9

        q, k, v = (self._split(f(x)) for f in self.self_qkv)
        a, _ = self._attend(q, k, v, ahead, training)
        x = self.norms[0](x + self.drop(self.self_out(a), training=training))

        q = self._split(self.cross_qkv[0](x))
        k = self._split(self.cross_qkv[1](memory))
        v = self._split(self.cross_qkv[2](memory))
        a, weights = self._attend(q, k, v, pad, training)
        x = self.norms[1](x + self.drop(self.cross_out(a), training=training))

        f = self.ff2(self.ff1(x))
        x = self.norms[2](x + self.drop(f, training=training))
        return x, weights
