import keras
from keras import layers, ops


class AttentionPooling1D(layers.Layer):
    """Attention pooling over the time steps of a sequence.

    Every step gets a score from a small MLP; the scores are normalised over the sequence and the
    output is the weighted average of the steps.

    Call arguments:
        inputs: `(batch, steps, features)`.
        mask: optional boolean `(batch, steps)`, True for valid steps.

    Output shape: `(batch, features)`, or a tuple with the weights `(batch, steps)` when
    `return_attention_scores` is set.
    """

    def __init__(self, units=32, return_attention_scores=False, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.return_attention_scores = return_attention_scores
        self.supports_masking = True
        self.hidden = layers.Dense(units, activation="tanh")
        self.score = layers.Dense(1, use_bias=False)

    def build(self, input_shape):
        self.hidden.build(input_shape)
        self.score.build((*input_shape[:-1], self.units))
        self.built = True

    def call(self, inputs, mask=None):
        scores = self.score(self.hidden(inputs))
        if mask is not None:
            keep = ops.expand_dims(ops.cast(mask, scores.dtype), axis=-1)
            scores = scores + (1.0 - keep) * -1e9
        weights = ops.softmax(scores, axis=-1)
        pooled = ops.sum(weights * inputs, axis=1)
        if self.return_attention_scores:
            return pooled, ops.squeeze(weights, axis=-1)
        return pooled

    def compute_mask(self, inputs, mask=None):
        return None

    def get_config(self):
        config = super().get_config()
        config.update({"units": self.units, "return_attention_scores": self.return_attention_scores})
        return config
