"""RoPE for patches of an image: half of the pairs of dimensions rotate by the patch's row, half by its column."""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.errors import ArgumentError, ShapeError
from headwise.nn.options import positive, whole
from headwise.nn.positions.rope_scaling import unscaled
from headwise.nn.positions.rotation import turn
from headwise.nn.positions.scheme import Positions, check_integers


class Rope2D(Positions):
    """Rotary positions on a grid, as in Pixtral (Agrawal et al. 2024). Pairs are (0, D/2), (1, D/2 + 1) ….

    RoPE's frequencies are θ_0 … θ_(D/2-1). Rows use the frequencies with even index, columns those with odd index: for
    a patch at (r, c) the first D/4 pairs rotate by r · θ_0, r · θ_2 …, the other D/4 pairs by c · θ_1, c · θ_3 ….

    Position ids are [S, 2] or [B, S, 2], (row, column) of each patch; for a whole grid, row by row:
    `torch.cartesian_prod(torch.arange(rows), torch.arange(columns))`.

    Args:
        head_dim: D, a multiple of 4.
        base: the base of the frequencies, θ_i = base^(-2i/D).

    Raises:
        ArgumentError: head_dim is not a positive multiple of 4.
    """

    inverse_frequencies: Tensor  # [2, D / 4] float32: of the rows, of the columns

    def __init__(self, head_dim: int, base: float = 10000.0) -> None:
        super().__init__()
        if whole("head_dim", head_dim) % 4:
            raise ArgumentError(
                "head_dim: expected a multiple of 4, for equal numbers of pairs for rows and columns. "
                f"Received: head_dim={head_dim}"
            )
        self.head_dim = head_dim
        self.base = float(positive("base", base))
        self._register_constants()

    def rotate(self, x_BHSD: Tensor, position_ids: Tensor, length: int | Tensor | None = None) -> Tensor:
        """Rotate queries or keys x [B, H, S, D] of patches at (row, column) [S, 2] or [B, S, 2], in the dtype of x."""
        _check_places(position_ids, x_BHSD.shape[0], x_BHSD.shape[2])
        phases = (position_ids[..., None].float() * self.inverse_frequencies).flatten(-2)
        return turn(x_BHSD, phases)

    def extra_repr(self) -> str:
        return f"{self.head_dim}, base={self.base}"

    def _constants(self) -> dict[str, Tensor]:
        theta = unscaled(self.head_dim, self.base, "cpu")
        return {"inverse_frequencies": torch.stack((theta[0::2], theta[1::2]))}


def _check_places(ids: Tensor, batch: int, length: int) -> None:
    check_integers("position_ids", ids, "[S, 2] or [B, S, 2]")
    fits = ids.ndim in (2, 3) and ids.shape[-2:] == (length, 2) and (ids.ndim == 2 or ids.shape[0] in (1, batch))
    if not fits:
        raise ShapeError(
            f"position_ids: expected (row, column) [{length}, 2] or [{batch}, {length}, 2]. "
            f"Received: position_ids={list(ids.shape)}"
        )
