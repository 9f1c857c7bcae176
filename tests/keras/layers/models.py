"""Whole models with these layers, for any backend."""

import keras
from keras import layers, ops

from tests.keras.layers.operations import CausalSelfAttention, MultiHeadSelfAttention


class Block(layers.Layer):
    """A Transformer block as on keras.io."""

    def __init__(self, width, heads, **kwargs):
        super().__init__(**kwargs)
        self.att = layers.MultiHeadAttention(heads, width // heads)
        self.ffn = keras.Sequential([layers.Dense(2 * width, activation="relu"), layers.Dense(width)])
        self.norm_1, self.norm_2 = layers.LayerNormalization(), layers.LayerNormalization()
        self.supports_masking = True

    def call(self, x):
        x = self.norm_1(x + self.att(x, x))
        return self.norm_2(x + self.ffn(x))


def make_classifier(wrong="mask over queries"):
    """Ids with padding; in its first layer is a mistake, in its two blocks none."""
    ids = keras.Input((None,), dtype="int32")
    x = layers.Embedding(20, 16, mask_zero=True)(ids)
    x = MultiHeadSelfAttention(16, 4, wrong=wrong, name="first")(x)
    for _ in range(2):
        x = Block(16, 4)(x)
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(ids, layers.Dense(2, activation="softmax")(x))


class Decoder(keras.Model):
    """A subclassed model, whose inputs have no shapes before it is called."""

    def __init__(self, wrong):
        super().__init__()
        self.blocks = [CausalSelfAttention(16, 4, wrong=wrong) for _ in range(2)]

    def call(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


def make_decoder(wrong="one ahead"):
    """A model and its inputs."""
    return Decoder(wrong), ops.ones((2, 6, 16)) * ops.arange(1, 7, dtype="float32")[:, None] / 7


def make_nothing():
    """A model without attention."""
    return keras.Sequential([keras.Input((4,)), layers.Dense(2)])
