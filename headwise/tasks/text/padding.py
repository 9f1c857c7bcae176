"""Rows of unlike lengths as one tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def padded(rows: Sequence[Sequence[int]], fill: int) -> Tensor:
    """[B, S] of int64 with the rows from the left, as long as the longest."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows], dtype=torch.long)


def padded_with_real(rows: Sequence[Sequence[int]], fill: int) -> tuple[Tensor, Tensor]:
    """`padded`, and what of it is no padding: bool [B, S], True = of the row itself."""
    found = padded(rows, fill)
    lengths = torch.tensor([len(row) for row in rows])
    return found, torch.arange(found.shape[1]) < lengths[:, None]
