from keras import layers, ops


def scaled_dot_product_attention(q, k, v, mask):
    """Calculate the attention weights.

    q, k, v must have matching leading dimensions. The mask has 1 at what must NOT be attended to (padding or the
    future) and must be broadcastable for addition.
    """
    matmul_qk = ops.matmul(q, ops.swapaxes(k, -1, -2))

    # scale matmul_qk
    dk = ops.cast(ops.shape(k)[-1], matmul_qk.dtype)
    scaled_attention_logits = matmul_qk / ops.sqrt(dk)

    # add the mask to the scaled tensor.
    if mask is not None:
        scaled_attention_logits += ops.cast(mask, scaled_attention_logits.dtype) * -1e9

    attention_weights = ops.softmax(scaled_attention_logits, axis=-1)
    return ops.matmul(attention_weights, v), attention_weights


def create_padding_mask(seq):
    """1 where ``seq`` is 0, with axes to add to the logits: (batch, 1, 1, seq_len)."""
    return ops.cast(ops.equal(seq, 0), "float32")[:, None, None, :]


class MultiHeadAttention(layers.Layer):
    """call(v, k, q, mask) -> output (batch, len_q, d_model), weights (batch, heads, len_q, len_k)"""

    def __init__(self, d_model=32, num_heads=4, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.d_model = d_model
        assert d_model % self.num_heads == 0
        self.depth = d_model // self.num_heads
        self.wq = layers.Dense(d_model)
        self.wk = layers.Dense(d_model)
        self.wv = layers.Dense(d_model)
        self.dense = layers.Dense(d_model)

    def split_heads(self, x, batch_size):
        x = ops.reshape(x, (batch_size, -1, self.num_heads, self.depth))
        return ops.transpose(x, (0, 2, 1, 3))

    def call(self, v, k, q, mask=None):
        batch_size = ops.shape(q)[0]

        q = self.split_heads(self.wq(q), batch_size)
        k = self.split_heads(self.wk(k), batch_size)
        v = self.split_heads(self.wv(v), batch_size)

        scaled_attention, attention_weights = scaled_dot_product_attention(q, k, v, mask)
        scaled_attention = ops.transpose(scaled_attention, (0, 2, 1, 3))
        concat_attention = ops.reshape(scaled_attention, (batch_size, -1, self.d_model))
        return self.dense(concat_attention), attention_weights
