"""Tokens of width 1, and what a cache holds of them, as numbers to read."""

from __future__ import annotations

import torch
from torch import Tensor

CPU = torch.device("cpu")


def tokens(*values: float) -> Tensor:
    """One row of tokens of width 1: [1, 1, S, 1]."""
    return torch.tensor(values, dtype=torch.float32).view(1, 1, -1, 1)


def rows(*values: list[float]) -> Tensor:
    """A row of tokens for each list: [B, 1, S, 1]."""
    return torch.tensor(values, dtype=torch.float32).view(len(values), 1, -1, 1)


def shown(x: Tensor) -> list[list[float]]:
    """[B, 1, n, 1] as lists."""
    return [list(row) for row in x[:, 0, :, 0].tolist()]


def numbers(x: Tensor | None) -> list[object]:
    return list(x.int().tolist())
