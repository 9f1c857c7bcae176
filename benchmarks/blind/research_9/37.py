import keras
from keras import ops


class TransformerDecoderAttention(keras.layers.Layer):
    """Cross attention of a decoder with a learned residual gate and pre-normalisation.

    call(query, context, context_padding): ``context_padding`` is boolean, (batch, time), ``True`` for padding,
    i.e. for the steps that are *not* to be used (the inverse of the usual Keras convention; the masks come
    from a PyTorch data loader).
    """

    def __init__(self, dim=32, num_heads=4, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.dim = dim
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.dropout_rate = dropout
        self.norm = keras.layers.LayerNormalization(epsilon=1e-5)
        self.to_q = keras.layers.EinsumDense("btd,dhe->bthe", (None, num_heads, self.head_dim))
        self.to_k = keras.layers.EinsumDense("btd,dhe->bthe", (None, num_heads, self.head_dim))
        self.to_v = keras.layers.EinsumDense("btd,dhe->bthe", (None, num_heads, self.head_dim))
        self.to_out = keras.layers.EinsumDense("bthe,hed->btd", (None, dim))
        self.drop = keras.layers.Dropout(dropout)

    def build(self, query_shape, context_shape=None):
        context_shape = context_shape or query_shape
        self.norm.build(query_shape)
        self.to_q.build(query_shape)
        self.to_k.build(context_shape)
        self.to_v.build(context_shape)
        self.to_out.build((query_shape[0], query_shape[1], self.num_heads, self.head_dim))
        self.gate = self.add_weight(shape=(1,), initializer="ones", name="gate")
        self.built = True

    def call(self, query, context, context_padding=None, training=None):
        q = self.to_q(self.norm(query)) * self.head_dim ** -0.5
        k = self.to_k(context)
        v = self.to_v(context)
        logits = ops.einsum("bqhe,bkhe->bhqk", q, k)
        if context_padding is not None:
            padded = ops.cast(context_padding, "bool")[:, None, None, :]
            logits = ops.where(padded, ops.cast(-1e9, logits.dtype), logits)
        weights = self.drop(ops.softmax(logits, axis=-1), training=training)
        out = self.to_out(ops.einsum("bhqk,bkhe->bqhe", weights, v))
        return query + self.gate * out

    def get_config(self):
        config = super().get_config()
        config.update(dim=self.dim, num_heads=self.num_heads, dropout=self.dropout_rate)
        return config
