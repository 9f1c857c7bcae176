import keras
from keras import layers, ops


class BahdanauAttention(keras.layers.Layer):
    """Additive attention for a recurrent decoder.

    call(query, values, mask):
        query:  decoder state, (batch, units_q)
        values: encoder outputs, (batch, time, units_v)
        mask:   (batch, time), 1 for source tokens and 0 for padding
    Returns the context vector (batch, units_v) and the weights (batch, time).
    """

    def __init__(self, units=32, **kwargs):
        super().__init__(**kwargs)
        self.W1 = layers.Dense(units, use_bias=False)
        self.W2 = layers.Dense(units, use_bias=False)
        self.V = layers.Dense(1, use_bias=False)

    def call(self, query, values, mask=None):
        query_with_time_axis = ops.expand_dims(query, axis=1)
        score = self.V(ops.tanh(self.W1(query_with_time_axis) + self.W2(values)))
        score = ops.squeeze(score, axis=-1)

        if mask is not None:
            score = score * ops.cast(mask, score.dtype)

        attention_weights = ops.softmax(score, axis=-1)
        context_vector = ops.sum(ops.expand_dims(attention_weights, -1) * values, axis=1)
        return context_vector, attention_weights
