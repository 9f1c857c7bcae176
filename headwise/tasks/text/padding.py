"""Puts rows of different lengths into one tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def padded(rows: Sequence[Sequence[int]], fill: int) -> Tensor:
    """Return one tensor int64 [B, S] with the rows at the left and `fill` after them; S is the longest row's length."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows], dtype=torch.long)


def padded_with_real(rows: Sequence[Sequence[int]], fill: int) -> tuple[Tensor, Tensor]:
    """Return (the tensor of `padded`, bool [B, S] with True for the tokens of a row and False for padding)."""
    found = padded(rows, fill)
    lengths = torch.tensor([len(row) for row in rows])
    return found, torch.arange(found.shape[1]) < lengths[:, None]
