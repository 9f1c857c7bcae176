"""Rectangles of the attention matrix, and the answer for a rectangle: all of its pairs are allowed, some, or none."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor


class Extent(IntEnum):
    """How many pairs of a rectangle are allowed. Kleene's logic: a & b = min(a, b), a | b = max(a, b), ~a = 2 - a."""

    NONE = 0
    SOME = 1
    ALL = 2


@dataclass(frozen=True)
class Rectangles:
    """One or more rectangles of queries [q_lo, q_hi) × keys [k_lo, k_hi), none empty. The bounds are integer tensors.

    The four tensors have the same rank, and broadcast to one shape.
    """

    q_lo: Tensor
    q_hi: Tensor
    k_lo: Tensor
    k_hi: Tensor
    wanted: Tensor | None = None  # bool; where it is False, the answer does not matter
    coarse: bool = False  # no cells are evaluated: an answer that would need them is SOME

    @property
    def shape(self) -> torch.Size:
        return torch.broadcast_shapes(self.q_lo.shape, self.q_hi.shape, self.k_lo.shape, self.k_hi.shape)


def make_extent(any_allowed: Tensor, all_allowed: Tensor) -> Tensor:
    """Make int8 extent codes of rectangles from "is any pair allowed" and "are all pairs allowed"."""
    return any_allowed.to(torch.int8) + all_allowed.to(torch.int8)
