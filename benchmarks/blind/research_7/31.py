import keras
from keras import layers, ops


@keras.saving.register_keras_serializable(package="textclf")
class AdditiveAttentionPooling(layers.Layer):
    """Pools [batch, time, features] to [batch, features].

    The score of a step is ``v . tanh(W h)``; it has no query and no scale. The softmax runs
    over the time axis (axis 1). The mask is Keras' own: True for the steps to keep.
    """

    def __init__(self, units=32, return_weights=False, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.return_weights = return_weights
        self.supports_masking = True
        self.hidden = layers.Dense(units, activation="tanh")
        self.score = layers.Dense(1, use_bias=False)

    def build(self, input_shape):
        self.hidden.build(input_shape)
        self.score.build((*input_shape[:-1], self.units))

    def compute_mask(self, inputs, mask=None):
        return None

    def call(self, inputs, mask=None):
        scores = self.score(self.hidden(inputs))
        if mask is not None:
            keep = ops.expand_dims(ops.cast(mask, "bool"), axis=-1)
            scores = ops.where(keep, scores, ops.cast(-1e4, scores.dtype))
        weights = ops.softmax(scores, axis=1)
        pooled = ops.sum(weights * inputs, axis=1)
        if self.return_weights:
            return pooled, ops.squeeze(weights, axis=-1)
        return pooled

    def get_config(self):
        return {**super().get_config(), "units": self.units, "return_weights": self.return_weights}
