from keras import layers, ops


class CausalMultiHeadAttention(layers.Layer):
    """Decoder self-attention.

    Args:
        num_heads: number of heads.
        key_dim: size of each head for queries and keys.
        value_dim: size of each head for values, key_dim by default.
        dropout: rate applied to the attention probabilities.

    The output has the width of the input whatever num_heads * key_dim is. padding_mask is
    (batch, length) with 1 (or True) for tokens and 0 for padding.
    """

    def __init__(self, num_heads=4, key_dim=32, value_dim=None, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim or key_dim
        self.rate = dropout
        self.query_dense = layers.EinsumDense("btc,chd->bthd", (None, num_heads, key_dim), bias_axes="hd")
        self.key_dense = layers.EinsumDense("btc,chd->bthd", (None, num_heads, key_dim), bias_axes="hd")
        self.value_dense = layers.EinsumDense("btc,chd->bthd", (None, num_heads, self.value_dim), bias_axes="hd")
        self.dropout = layers.Dropout(dropout)

    def build(self, input_shape):
        width = input_shape[-1]
        self.query_dense.build(input_shape)
        self.key_dense.build(input_shape)
        self.value_dense.build(input_shape)
        self.output_dense = layers.EinsumDense("bthd,hdc->btc", (None, width), bias_axes="c")
        self.output_dense.build(tuple(input_shape[:-1]) + (self.num_heads, self.value_dim))
        self.built = True

    def call(self, x, padding_mask=None, training=None):
        length = ops.shape(x)[1]
        query = self.query_dense(x) * (self.key_dim ** -0.5)
        key = self.key_dense(x)
        value = self.value_dense(x)

        scores = ops.einsum("bqhd,bkhd->bhqk", query, key)
        steps = ops.arange(length)
        allowed = ops.cast(ops.expand_dims(steps, 1) >= ops.expand_dims(steps, 0), scores.dtype)[None, None]
        if padding_mask is not None:
            allowed = allowed * ops.cast(padding_mask, scores.dtype)[:, None, None, :]
        scores = scores + (1.0 - allowed) * -1e9

        probs = self.dropout(ops.softmax(scores, axis=-1), training=training)
        return self.output_dense(ops.einsum("bhqk,bkhd->bqhd", probs, value))

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        config = super().get_config()
        config.update(
            num_heads=self.num_heads, key_dim=self.key_dim, value_dim=self.value_dim, dropout=self.rate
        )
        return config
