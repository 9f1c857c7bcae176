"""RoPE: queries and keys are rotated by angles proportional to their position."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from headwise.errors import ArgumentError
from headwise.keras.call import precision
from headwise.keras.layer import Tensor
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
        """Rotate queries or keys x [B, H, S, D] at positions [S] or [B, S] by their angles, in the dtype of x."""
        check_ids("position_ids", position_ids, x.shape[0], x.shape[2])
        phases = ops.expand_dims(ops.cast(position_ids, "float32"), -1) * self._at(length)
        return turn(x, phases, amplitude=self.amplitude, interleaved=self.interleaved)

    def _at(self, length: Tensor | None) -> Tensor:
        """Return the frequencies θ, [rotary_dim / 2]; those for `length` tokens if the scaling depends on it."""
        if self.scaling is None or not self.scaling.depends_on_length:
            return ops.convert_to_tensor(self._frequencies)
        if length is None:
            raise ArgumentError(
                f"length: expected the number of tokens, {self.scaling} depends on it. Received: length=None"
            )
        scaling, dim = self.scaling, self.rotary_dim
        if isinstance(length, int):  # then the numbers of the twin can be used
            return ops.convert_to_tensor(scaling.frequencies(dim, self.base, length, "cpu").numpy())
        if not isinstance(scaling, DynamicNTK):  # up to the original length, or beyond it
            last = scaling.original_length
            near, far = (scaling.frequencies(dim, self.base, x, "cpu").numpy() for x in (last, last + 1))
            return ops.where(ops.convert_to_tensor(length) > last, far, near)
        beyond = ops.maximum(ops.cast(length, "float32") - scaling.original_length, 0.0)
        stretched = self.base * (1.0 + scaling.factor * beyond / scaling.original_length) ** (dim / (dim - 2))
        return 1.0 / ops.power(stretched, np.arange(0, dim, 2, dtype=np.float32) / dim)


def turn(x: Tensor, phases: Tensor, *, amplitude: float, interleaved: bool) -> Tensor:
    """Rotate the first 2n dimensions of x [B, H, S, D] by the angles `phases`, [S, n] or [B, S, n].

    The pairs of dimensions are (0, n), (1, n + 1) …, or if `interleaved` (0, 1), (2, 3) …; other dimensions do not
    change. The rotation is computed in float32 or better; the result has the dtype of x. `amplitude` is a factor on cos
    and sin.

        (a, b) → (a cos φ - b sin φ,  b cos φ + a sin φ)
    """
    if len(phases.shape) == 3:
        phases = ops.expand_dims(phases, 1)  # all heads have the same positions
    cos, sin = (ops.cast(wave * amplitude, precision(x)) for wave in (ops.cos(phases), ops.sin(phases)))
    half = phases.shape[-1]
    turned, rest = ops.cast(x[..., : 2 * half], precision(x)), x[..., 2 * half :]
    if interleaved:
        sizes = ops.shape(turned)
        pairs = ops.reshape(turned, (*sizes[:-1], half, 2))
        a, b = pairs[..., 0], pairs[..., 1]
        out = ops.reshape(ops.stack((a * cos - b * sin, b * cos + a * sin), axis=-1), sizes)
    else:
        a, b = turned[..., :half], turned[..., half:]
        out = ops.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)
    out = ops.cast(out, x.dtype)
    return ops.concatenate((out, rest), axis=-1) if rest.shape[-1] else out
