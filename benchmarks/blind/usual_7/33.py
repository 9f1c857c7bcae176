import keras
from keras import layers, ops


class AttentionPooling1D(layers.Layer):
    """Multi-query additive attention pooling over time.

    Each of ``num_queries`` learned queries gives one weighted mean of the timesteps. The Keras mask (``True`` at
    real timesteps) is consumed here and does not travel on, since the time axis is gone afterwards.

    Input: ``(batch, time, features)``; output: ``(batch, num_queries * features)``.
    """

    def __init__(self, units=32, num_queries=2, return_weights=False, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.num_queries = num_queries
        self.return_weights = return_weights
        self.supports_masking = True
        self.hidden = layers.Dense(units, activation="tanh")
        self.scorer = layers.Dense(num_queries, use_bias=False)

    def build(self, input_shape):
        self.hidden.build(input_shape)
        self.scorer.build(tuple(input_shape[:-1]) + (self.units,))
        self.built = True

    def compute_mask(self, inputs, mask=None):
        return None

    def call(self, inputs, mask=None):
        scores = self.scorer(self.hidden(inputs))
        if mask is not None:
            absent = 1.0 - ops.cast(mask, scores.dtype)
            scores = scores - ops.expand_dims(absent, -1) * 1e9
        weights = ops.softmax(scores, axis=1)
        pooled = ops.matmul(ops.transpose(weights, (0, 2, 1)), inputs)
        pooled = ops.reshape(pooled, (-1, self.num_queries * inputs.shape[-1]))
        if self.return_weights:
            return pooled, weights
        return pooled

    def get_config(self):
        config = super().get_config()
        config.update(units=self.units, num_queries=self.num_queries, return_weights=self.return_weights)
        return config
