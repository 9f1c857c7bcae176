"""In plain JAX inside a Keras layer: attention to a second sequence, or to itself."""

import jax
import jax.numpy as jnp
import keras


class Attention(keras.layers.Layer):
    """Multi-head attention of a query to a value and a key, called like keras.layers.MultiHeadAttention."""

    def __init__(self, units, num_heads, wrong="", **kwargs):
        super().__init__(**kwargs)
        self.units, self.num_heads, self.wrong = units, num_heads, wrong
        self.to_q, self.to_k, self.to_v = (keras.layers.Dense(units, use_bias=False) for _ in range(3))
        self.to_out = keras.layers.Dense(units)

    def call(self, query, value, key=None, attention_mask=None, training=False):
        """attention_mask: bool [batch, queries, keys], True = may attend."""
        key = value if key is None else key

        def split(x):
            if self.wrong == "heads split without transpose":
                return x.reshape(x.shape[0], self.num_heads, x.shape[1], -1)
            return x.reshape(*x.shape[:2], self.num_heads, -1).swapaxes(1, 2)

        q, k = split(self.to_q(query)), split(self.to_k(key))
        v = k if self.wrong == "keys for values" else split(self.to_v(value))
        scores = q @ k.swapaxes(-1, -2)
        if self.wrong != "no factor":
            scores = scores / jnp.sqrt(q.shape[-1])
        if attention_mask is not None and self.wrong != "mask ignored":
            allowed = ~attention_mask if self.wrong == "mask turned round" else attention_mask
            scores = jnp.where(allowed[:, None], scores, -1e9)
        weights = jax.nn.softmax(scores, axis=-2 if self.wrong == "softmax over queries" else -1)
        y = weights @ v
        if self.wrong != "heads merged without transpose":
            y = y.swapaxes(1, 2)
        return self.to_out(y.reshape(query.shape[0], query.shape[1], self.units))
