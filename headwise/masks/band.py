"""Masks that depend only on the distance between key and query: causal and sliding windows."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from headwise.masks.extent import Rectangles, make_extent
from headwise.masks.fields import number
from headwise.masks.mask import Mask
from headwise.masks.relation import Allowed, Index
from headwise.masks.tables import FAR, integer


def causal(offset: int | None = None) -> Mask:
    """Let each query see the keys up to its own position, this position included: k <= q + offset.

    `offset` None means K - Q: the last query is at the position of the last key, so a decoding step sees the whole
    cache. `offset=0` aligns the first query with the first key instead (what `is_causal=True` does in PyTorch).

    >>> print(causal().draw(4))
    ■ · · ·
    ■ ■ · ·
    ■ ■ ■ ·
    ■ ■ ■ ■
    >>> print(causal().draw(2, 4))
    ■ ■ ■ ·
    ■ ■ ■ ■
    >>> print(causal(offset=0).draw(2, 4))
    ■ · · ·
    ■ ■ · ·
    """
    return Band(None, 0, integer("causal: offset", offset, optional=True))


def window(left: int | None, right: int | None, offset: int | None = None) -> Mask:
    """Let each query see its own position, `left` keys before it and `right` after it; None = no limit on that side.

    `window(2, 0)` lets query i see the keys i-2, i-1 and i (a causal sliding window). `offset` is the same as in
    `causal`.

    >>> print(window(2, 0).draw(4))
    ■ · · ·
    ■ ■ · ·
    ■ ■ ■ ·
    · ■ ■ ■
    >>> print(window(1, 1).draw(4))
    ■ ■ · ·
    ■ ■ ■ ·
    · ■ ■ ■
    · · ■ ■
    """
    left = integer("window: left", left, least=0, optional=True)
    right = integer("window: right", right, least=0, optional=True)
    return Band(left, right, integer("window: offset", offset, optional=True))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Band(Mask, kind="band", function="window"):
    """A mask that allows a pair if -left <= k - (q + offset) <= right; None = no limit. Its `extents` are exact."""

    left: int | None = number(0, optional=True)
    right: int | None = number(0, optional=True)
    offset: int | None = number(optional=True)

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        low, high = self.band()
        allowed = k == k if low == -math.inf == -high else None
        if low > -math.inf:
            allowed = k >= q + low
        if high < math.inf:
            below = k <= q + high
            allowed = below if allowed is None else allowed & below
        return allowed

    def extents(self, r: Rectangles) -> Tensor:
        low, high = self.band()
        some = ((r.k_hi - 1) >= r.q_lo + low) & (r.k_lo <= (r.q_hi - 1) + high)
        every = (r.k_lo >= (r.q_hi - 1) + low) & ((r.k_hi - 1) <= r.q_lo + high)
        return make_extent(some, every)[None, None]

    def patterns(self, r: Rectangles) -> list[Tensor]:
        return [(r.k_lo - r.q_lo).expand(r.shape)[None, None]]

    def band(self) -> tuple[float, float]:
        low = -math.inf if self.left is None else self.shift - self.left
        high = math.inf if self.right is None else self.shift + self.right
        if torch.compiler.is_compiling():  # comparing symbolic sizes would add a guard to the compiled code
            return low, high
        # No two positions are that far apart: a limit that no distance can reach is no limit.
        return (-math.inf if low <= -FAR else min(low, FAR)), (math.inf if high >= FAR else max(high, -FAR))

    def __repr__(self) -> str:
        written = super().__repr__()
        return written.replace("window(None, 0, ", "causal(").replace("window(None, 0)", "causal()")
