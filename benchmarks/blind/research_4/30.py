import keras
from keras import ops


class GatedMILPooling(keras.layers.Layer):
    """Gated attention pooling for multiple-instance learning (Ilse et al., 2018).

    There are no queries, keys or heads: each instance of the bag gets the score
    `w . (tanh(V h) * sigmoid(U h))`, the scores are normalised over the instances of the bag (axis 1) and the bag
    is the weighted mean of its instances.

    Args:
        attn_dim: width of the two hidden projections.
        return_weights: also return the weights, `(batch, instances)`.

    Call arguments:
        bag: `(batch, instances, features)`.
        mask: optional boolean `(batch, instances)`, `True` for real instances; each bag has at least one.
    """

    def __init__(self, attn_dim=64, return_weights=False, **kwargs):
        super().__init__(**kwargs)
        self.attn_dim = attn_dim
        self.return_weights = return_weights
        self.supports_masking = True

    def build(self, input_shape):
        self.v_dense = keras.layers.Dense(self.attn_dim, activation="tanh", name="v")
        self.u_dense = keras.layers.Dense(self.attn_dim, activation="sigmoid", name="u")
        self.w_dense = keras.layers.Dense(1, use_bias=False, name="w")
        self.v_dense.build(input_shape)
        self.u_dense.build(input_shape)
        self.w_dense.build((input_shape[0], input_shape[1], self.attn_dim))
        self.built = True

    def compute_mask(self, inputs, mask=None):
        return None

    def call(self, bag, mask=None):
        scores = self.w_dense(self.v_dense(bag) * self.u_dense(bag))
        if mask is not None:
            scores = ops.where(ops.cast(mask, "bool")[:, :, None], scores, -1e9)
        weights = ops.softmax(scores, axis=1)
        pooled = ops.sum(weights * bag, axis=1)
        if self.return_weights:
            return pooled, ops.squeeze(weights, axis=-1)
        return pooled

    def get_config(self):
        config = super().get_config()
        config.update(attn_dim=self.attn_dim, return_weights=self.return_weights)
        return config
