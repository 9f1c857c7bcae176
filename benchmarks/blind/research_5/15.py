import keras
from keras import layers, ops


class MultiQueryPooling(layers.Layer):
    """Pools a padded sequence into ``num_queries`` vectors.

    Additive (Bahdanau) scoring: ``score = w . tanh(K x + q)``, so there is no square root in front of the
    softmax. The values are the raw inputs, without projection: the pooled vectors stay
    in the space of the inputs and can be compared with them.

    Call arguments:
        x: (batch, time, dim)
        mask: optional (batch, time), True for real steps. Rows that are all padding pool to zeros.
    """

    def __init__(self, num_queries=4, units=32, **kwargs):
        super().__init__(**kwargs)
        self.num_queries = num_queries
        self.units = units
        self.supports_masking = True
        self.key = layers.Dense(units, use_bias=False)

    def build(self, input_shape):
        self.key.build(input_shape)
        self.queries = self.add_weight(
            name="queries", shape=(self.num_queries, self.units), initializer="glorot_uniform"
        )
        self.scorer = self.add_weight(name="scorer", shape=(self.units,), initializer="random_normal")
        super().build(input_shape)

    def call(self, x, mask=None):
        keys = self.key(x)
        hidden = ops.tanh(keys[:, None, :, :] + self.queries[None, :, None, :])
        scores = ops.sum(hidden * self.scorer, axis=-1)
        if mask is None:
            weights = ops.softmax(scores, axis=-1)
        else:
            keep = ops.cast(mask, scores.dtype)[:, None, :]
            scores = scores + (keep - 1.0) * 1e9
            weights = ops.softmax(scores, axis=-1) * keep
        return ops.matmul(weights, x)

    def compute_mask(self, x, mask=None):
        return None

    def compute_output_shape(self, input_shape):
        return (input_shape[0], self.num_queries, input_shape[-1])

    def get_config(self):
        return {**super().get_config(), "num_queries": self.num_queries, "units": self.units}
