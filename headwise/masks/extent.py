"""The answer to a rectangle: all of its pairs are allowed, some, or none."""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor


class Extent(IntEnum):
    """How many pairs of a rectangle are allowed. By Kleene's logic `&` is the minimum, `|` the maximum, `~` 2 - x."""

    NONE = 0
    SOME = 1
    ALL = 2


def extent_of(any_allowed: Tensor, all_allowed: Tensor) -> Tensor:
    """The int8 extent codes of rectangles from "is any pair allowed" and "are all pairs allowed"."""
    return any_allowed.to(torch.int8) + all_allowed.to(torch.int8)
