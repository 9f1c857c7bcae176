"""RoPE: queries and keys are rotated by angles proportional to their position."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from headwise.errors import ArgumentError
from headwise.keras.layer import Tensor
from headwise.keras.positions.rotation import turn
from headwise.keras.positions.scheme import Positions, check_ids
from headwise.keras.saving import PACKAGE
from headwise.nn import positions as torch_positions
from headwise.nn.positions import DynamicNTK


@keras.saving.register_keras_serializable(PACKAGE)
class Rope(Positions, twin=torch_positions.Rope):
    """Rotary positions. Su et al. 2021 (RoFormer), equations 14-16 and 34. See `headwise.nn.positions.Rope`.

    The angles are float32 under mixed precision too.

    Args: as of `headwise.nn.positions.Rope`.

    Raises:
        ArgumentError: dimensions that are odd or not positive, rotary_dim > head_dim, an unknown scaling.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        o = self._begin(*args, **kwargs)
        twin = torch_positions.Rope(**vars(o))  # the twin checks the options and has the numbers
        self.head_dim, self.rotary_dim = twin.head_dim, twin.rotary_dim
        self.base, self.interleaved, self.scaling = twin.base, o.interleaved, o.scaling
        self.amplitude = twin.amplitude
        self._frequencies = twin.inverse_frequencies.cpu().numpy()

    def rotate(self, x: Tensor, position_ids: Tensor, length: Tensor | None = None) -> Tensor:
        """Queries or keys [B, H, S, D] at positions [S] or [B, S], rotated, in the same dtype."""
        check_ids("position_ids", position_ids, x.shape[0], x.shape[2])
        phases = ops.expand_dims(ops.cast(position_ids, "float32"), -1) * self._at(length)
        return turn(x, phases, amplitude=self.amplitude, interleaved=self.interleaved)

    def _at(self, length: Tensor | None) -> Tensor:
        """θ, [rotary_dim / 2]; with `DynamicNTK` for `length` tokens."""
        if not isinstance(self.scaling, DynamicNTK):
            return ops.convert_to_tensor(self._frequencies)
        if length is None:
            raise ArgumentError(
                f"length: expected the number of tokens, {self.scaling} depends on it. Received: length=None"
            )
        scaling, dim = self.scaling, self.rotary_dim
        if isinstance(length, int):  # then use the twin's own numbers
            return ops.convert_to_tensor(scaling.frequencies(dim, self.base, length, "cpu").numpy())
        beyond = ops.maximum(ops.cast(length, "float32") - scaling.original_length, 0.0)
        stretched = self.base * (1.0 + scaling.factor * beyond / scaling.original_length) ** (dim / (dim - 2))
        return 1.0 / ops.power(stretched, np.arange(0, dim, 2, dtype=np.float32) / dim)
