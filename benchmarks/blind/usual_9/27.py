import keras
from keras import layers, ops


class AttentivePooling(layers.Layer):
    """Pools a sequence to one vector with learned weights, as in hierarchical attention networks.

    Input is (batch, time, features) and output (batch, features). The scores have shape (batch, time, 1), hence
    the softmax over axis 1. Steps that the incoming Keras mask marks as False get no weight.
    """

    def __init__(self, units=64, return_weights=False, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.return_weights = return_weights
        self.supports_masking = True
        self.hidden = layers.Dense(units, activation="tanh")
        self.score = layers.Dense(1, use_bias=False)

    def build(self, input_shape):
        self.hidden.build(input_shape)
        self.score.build(tuple(input_shape[:-1]) + (self.units,))
        self.built = True

    def call(self, inputs, mask=None):
        scores = self.score(self.hidden(inputs))
        if mask is not None:
            keep = ops.cast(ops.expand_dims(mask, axis=-1), scores.dtype)
            scores = scores - (1.0 - keep) * 1e9
        weights = ops.softmax(scores, axis=1)
        pooled = ops.sum(weights * inputs, axis=1)
        if self.return_weights:
            return pooled, ops.squeeze(weights, axis=-1)
        return pooled

    def compute_mask(self, inputs, mask=None):
        # The time axis is gone after pooling.
        return None

    def get_config(self):
        config = super().get_config()
        config.update({"units": self.units, "return_weights": self.return_weights})
        return config
