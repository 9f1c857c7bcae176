"""Stochastic depth: in training, some examples skip a branch of a residual network."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from headwise import nn
from headwise.keras.layer import Layer, Tensor
from headwise.keras.saving import PACKAGE
from headwise.nn import options


@keras.saving.register_keras_serializable(PACKAGE)
class DropPath(Layer, twin=nn.DropPath):
    """Drops a whole branch, separately for each example. Huang et al. 2016 (Stochastic Depth), equation 2.

    x + DropPath(p)(branch(x)) is x with probability p, else x + branch(x) / (1 - p). Its expectation equals the output
    in inference, where nothing is dropped. (The paper scales in inference instead, equation 5.)

    Args: as of `headwise.nn.DropPath`, and
        seed: the seed of the random choice.

    Raises:
        ArgumentError: a probability outside of [0, 1).
    """

    def __init__(self, *args: Any, seed: int | None = None, **kwargs: Any) -> None:
        o = self._begin(*args, **kwargs)
        self.probability = options.probability("probability", o.probability)
        self.seed_generator = keras.random.SeedGenerator(seed) if o.probability else None

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Set examples of the input [B, ...] to 0 at random, and divide others by 1 - p; in inference return it."""
        if not training or self.seed_generator is None:
            return inputs
        kept = 1.0 - self.probability
        each = (ops.shape(inputs)[0], *[1] * (len(inputs.shape) - 1))
        drawn = keras.random.uniform(each, dtype="float32", seed=self.seed_generator)
        return ops.where(drawn < kept, inputs / kept, ops.zeros_like(inputs))

    def compute_output_spec(self, inputs: Any, training: bool | None = None) -> keras.KerasTensor:
        """Return the shape of the output, which is the shape of the input."""
        return keras.KerasTensor(inputs.shape, dtype=self.compute_dtype)
