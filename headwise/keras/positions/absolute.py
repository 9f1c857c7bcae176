"""Absolute positions: a vector for each position, added to the embedding of the token before the first layer."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from headwise.errors import ArgumentError
from headwise.keras.layer import Layer, Tensor, read_values
from headwise.keras.positions.scheme import check_integers
from headwise.keras.saving import PACKAGE
from headwise.nn import positions as torch_positions
from headwise.nn.options import positive, whole

DIGIT = 10  # the number of bits of a position that are processed at a time


@keras.saving.register_keras_serializable(PACKAGE)
class Sinusoidal(Layer, twin=torch_positions.Sinusoidal):
    """Sine and cosine waves of M/2 frequencies, one vector for each position. Vaswani et al. 2017, §3.5.

        PE(p, 2i) = sin(p / base^(2i/M)),   PE(p, 2i + 1) = cos(p / base^(2i/M))

    It has no weights and no maximum position. In float32, p / base^(2i/M) would lose digits at large positions, and not
    every backend has float64. So p is multiplied with turns per position (angles / 2π), in parts of so few bits that
    their products are exact in float32.

    Args: as of `headwise.nn.positions.Sinusoidal`.

    Raises:
        ArgumentError: dim is odd or not positive.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        o = self._begin(*args, **kwargs)
        twin = torch_positions.Sinusoidal(**vars(o))  # the twin checks the options
        self.dim, self.base, self.interleaved = twin.dim, twin.base, twin.interleaved
        turns = self.base ** -(np.arange(0, self.dim, 2, dtype=np.float64) / self.dim) / (2.0 * math.pi)  # a position
        per_digit = np.stack([turns * 2.0 ** (DIGIT * j) % 1.0 for j in range(3)])
        coarse = np.floor(per_digit * 4096.0) / 4096.0
        self._coarse, self._fine = coarse.astype(np.float32), (per_digit - coarse).astype(np.float32)

    def call(self, position_ids: Tensor) -> Tensor:
        """Return the vectors [S, M] or [B, S, M] of positions [S] or [B, S]."""
        check_integers("position_ids", position_ids)
        ids = ops.expand_dims(ops.cast(position_ids, "int32"), -1)
        low, middle = (ops.bitwise_and(ops.right_shift(ids, DIGIT * j), 2**DIGIT - 1) for j in (0, 1))
        digits = [ops.cast(digit, "float32") for digit in (low, middle, ops.right_shift(ids, 2 * DIGIT))]
        # A product of 12 bits and 12 bits is exact in float32, and so is its fraction of a turn.
        turns = sum(_fraction(ops.multiply(digit, part)) for digit, part in zip(digits, self._coarse, strict=True))
        rest = sum(ops.multiply(digit, part) for digit, part in zip(digits, self._fine, strict=True))
        phases = _fraction(_fraction(turns) + rest) * (2.0 * math.pi)
        waves = ops.sin(phases), ops.cos(phases)
        if not self.interleaved:
            return ops.cast(ops.concatenate(waves, axis=-1), self.compute_dtype)
        shape = (*ops.shape(position_ids), self.dim)
        return ops.cast(ops.reshape(ops.stack(waves, axis=-1), shape), self.compute_dtype)

    def compute_output_spec(self, position_ids: Any, **kwargs: Any) -> Any:
        """Return the shape of the output of `call`, without computing the output."""
        check_integers("position_ids", position_ids)
        return keras.KerasTensor((*position_ids.shape, self.dim), dtype=self.compute_dtype)


@keras.saving.register_keras_serializable(PACKAGE)
class Learned(Layer, twin=torch_positions.Learned):
    """A learned vector for each position. Gehring et al. 2017; Devlin et al. 2019 (BERT), §3; GPT-2.

    Args: as of `headwise.nn.positions.Learned`.

    The table is the weight `weight`, [max_positions, M].

    Raises:
        ArgumentError: a size that is not positive; in a call, a position outside of the table (not checked inside
            tf.function, jax.jit and torch.compile, where values are unknown).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        o = self._begin(*args, **kwargs)
        self.max_positions = whole("max_positions", o.max_positions)
        self.dim = whole("dim", o.dim)
        self.std = positive("std", o.std)
        self.weight: Any = None

    def build(self, input_shape: object = None) -> None:
        """Create the table. Its shape depends only on the options."""
        drawn = keras.initializers.RandomNormal(stddev=self.std)
        self.weight = self.add_weight(shape=(self.max_positions, self.dim), initializer=drawn, name="weight")
        self.built = True

    def call(self, position_ids: Tensor) -> Tensor:
        """Return the vectors [S, M] or [B, S, M] of positions [S] or [B, S]."""
        check_integers("position_ids", position_ids)
        known = read_values(position_ids)
        if known is not None and known.size and not 0 <= known.min() <= known.max() < self.max_positions:
            raise ArgumentError(
                f"position_ids: expected 0 to {self.max_positions - 1}, the rows of the table. "
                f"Received: {known.min()} to {known.max()}. Cut the input, or use a longer table"
            )
        return ops.take(ops.convert_to_tensor(self.weight), position_ids, axis=0)

    def compute_output_spec(self, position_ids: Any, **kwargs: Any) -> Any:
        """Return the shape of the output of `call`, without computing the output."""
        check_integers("position_ids", position_ids)
        return keras.KerasTensor((*position_ids.shape, self.dim), dtype=self.compute_dtype)


def _fraction(turns: Tensor) -> Tensor:
    """The turns minus the nearest whole number of turns: -1/2 to 1/2."""
    return turns - ops.round(turns)
