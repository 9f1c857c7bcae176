import keras
from keras import layers, ops


@keras.saving.register_keras_serializable(package="retrieval")
class EvidenceReader(layers.Layer):
    """Lets query tokens read from a padded set of context tokens.

    The scores are additive (Bahdanau), one energy vector per head. ``context_mask`` follows the
    Keras convention, True for real tokens, and is picked up by itself from an upstream
    ``Embedding(mask_zero=True)``. The penalty is -3e4 so that it also fits in float16; rows without
    a single real context token return zeros.
    """

    def __init__(self, units=64, num_heads=4, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.units = units
        self.num_heads = num_heads
        self.head_dim = units // num_heads
        self.w_query = layers.Dense(units, use_bias=True)
        self.w_key = layers.Dense(units, use_bias=False)
        self.w_value = layers.Dense(units, use_bias=False)

    def build(self, query_shape, context_shape):
        self.w_query.build(query_shape)
        self.w_key.build(context_shape)
        self.w_value.build(context_shape)
        self.energy = self.add_weight(
            name="energy", shape=(self.num_heads, self.head_dim), initializer="glorot_uniform"
        )
        self.built = True

    def _heads(self, x):
        shape = ops.shape(x)
        return ops.reshape(x, (shape[0], shape[1], self.num_heads, self.head_dim))

    def call(self, query, context, context_mask=None):
        q = self._heads(self.w_query(query))
        k = self._heads(self.w_key(context))
        v = self._heads(self.w_value(context))

        hidden = ops.tanh(ops.expand_dims(q, 2) + ops.expand_dims(k, 1))
        score = ops.einsum("bqkhd,hd->bhqk", hidden, self.energy)

        if context_mask is not None:
            real = ops.cast(context_mask, score.dtype)
            score = score - 3e4 * (1.0 - real[:, None, None, :])
        weights = ops.softmax(score, axis=-1)
        if context_mask is not None:
            weights = weights * real[:, None, None, :]

        out = ops.einsum("bhqk,bkhd->bqhd", weights, v)
        shape = ops.shape(out)
        return ops.reshape(out, (shape[0], shape[1], self.units))

    def get_config(self):
        return {**super().get_config(), "units": self.units, "num_heads": self.num_heads}
