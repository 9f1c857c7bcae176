"""Rotation of pairs of dimensions by angles. All rotary position schemes use it."""

from __future__ import annotations

import torch
from torch import Tensor


def turn(x_BHSD: Tensor, phases: Tensor, *, amplitude: float = 1.0, interleaved: bool = False) -> Tensor:
    """Rotate the first 2n dimensions of x [B, H, S, D] by the angles `phases`, [S, n] or [B, S, n].

    The pairs of dimensions are (0, n), (1, n + 1) …, or if `interleaved` (0, 1), (2, 3) …; other dimensions do not
    change. The rotation is computed in float32 or better; the result has the dtype of x. `amplitude` is a factor on cos
    and sin.

        (a, b) → (a cos φ - b sin φ,  b cos φ + a sin φ)
    """
    if phases.ndim == 3:
        phases = phases[:, None]  # the heads of a row have the same positions
    cos, sin = phases.cos(), phases.sin()
    if amplitude != 1.0:
        cos, sin = cos * amplitude, sin * amplitude
    turned = 2 * phases.shape[-1]
    x, rest = x_BHSD[..., :turned], x_BHSD[..., turned:]
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
    # cos and sin are float32, and so are the products, for any dtype of x.
    parts = (a * cos - b * sin, b * cos + a * sin)
    out = torch.stack(parts, dim=-1).flatten(-2) if interleaved else torch.cat(parts, dim=-1)
    out = out.to(x_BHSD.dtype)
    return torch.cat((out, rest), dim=-1) if rest.shape[-1] else out
