"""Rotation of pairs of dimensions by angles, which all rotary schemes use."""

from __future__ import annotations

from keras import ops

from headwise.keras.call import Tensor, precision


def turn(x: Tensor, phases: Tensor, *, amplitude: float = 1.0, interleaved: bool = False) -> Tensor:
    """x [B, H, S, D] with its first 2n dimensions rotated by `phases`, [S, n] or [B, S, n], in float32 or better.

    The pairs are (0, n), (1, n + 1) …, or if `interleaved` (0, 1), (2, 3) …; the other dimensions and the dtype do
    not change.

        (a, b) → (a cos φ - b sin φ,  b cos φ + a sin φ)
    """
    if len(phases.shape) == 3:
        phases = ops.expand_dims(phases, 1)  # all heads have the same positions
    cos, sin = (ops.cast(wave * amplitude, precision(x)) for wave in (ops.cos(phases), ops.sin(phases)))
    half = phases.shape[-1]
    turned, rest = ops.cast(x[..., : 2 * half], precision(x)), x[..., 2 * half :]
    if interleaved:
        pairs = ops.reshape(turned, (*_sizes(turned)[:-1], half, 2))
        a, b = pairs[..., 0], pairs[..., 1]
        out = ops.reshape(ops.stack((a * cos - b * sin, b * cos + a * sin), axis=-1), _sizes(turned))
    else:
        a, b = turned[..., :half], turned[..., half:]
        out = ops.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)
    out = ops.cast(out, x.dtype)
    return ops.concatenate((out, rest), axis=-1) if rest.shape[-1] else out


def _sizes(x: Tensor) -> tuple[object, ...]:
    """The shape; unknown sizes are tensors."""
    return tuple(ops.shape(x))
