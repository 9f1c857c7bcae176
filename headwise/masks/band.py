"""Masks that depend on the distance between key and query alone: causal and sliding windows."""

from __future__ import annotations

import dataclasses
import math

from torch import Tensor

from headwise.errors import DtypeError
from headwise.masks.extent import extent_of
from headwise.masks.mask import Allowed, Index, Mask
from headwise.masks.tables import index_at


def causal(offset: int | None = None) -> Mask:
    """Each query sees the keys up to its own position, itself included: k <= q + offset.

    `offset` None means K - Q: the last query stands at the last key, so a decoding step sees the whole cache.
    `offset=0` aligns the first query with the first key instead (what `is_causal=True` does in PyTorch).

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
    return Band(None, 0, _offset(offset))


def window(left: int | None, right: int | None, offset: int | None = None) -> Mask:
    """Each query sees its own position, `left` neighbours before it and `right` after it; None = no limit on that side.

    `window(2, 0)` keeps keys i-2, i-1, i (a causal sliding window). `offset` as in `causal`.

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
    left = None if left is None else index_at("window: left", left)
    right = None if right is None else index_at("window: right", right)
    return Band(left, right, _offset(offset))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Band(Mask):
    """-left <= k - (q + offset) <= right; None = no limit. Its rectangles are exact."""

    left: int | None
    right: int | None
    offset: int | None = None

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        position = q + (self.offset or 0)
        if self.left is None and self.right is None:
            return k == k
        if self.left is None:
            return k <= position + self.right
        if self.right is None:
            return k >= position - self.left
        return (k >= position - self.left) & (k <= position + self.right)

    def rectangles(
        self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor, wanted: Tensor | None = None
    ) -> Tensor:
        low, high = self._band()
        lowest, highest = k_lo - (q_hi - 1), (k_hi - 1) - q_lo  # of k - q in each rectangle
        return extent_of((highest >= low) & (lowest <= high), (lowest >= low) & (highest <= high))[None, None]

    def band(self) -> tuple[float, float] | None:
        return self._band()

    def _band(self) -> tuple[float, float]:
        offset = self.offset or 0
        low = -math.inf if self.left is None else offset - self.left
        high = math.inf if self.right is None else offset + self.right
        return low, high

    def align(self, q_len: int, k_len: int) -> Mask:
        return self if self.offset is not None else dataclasses.replace(self, offset=k_len - q_len)

    def __repr__(self) -> str:
        offset = "" if self.offset is None else f"offset={self.offset}"
        if (self.left, self.right) == (None, 0):
            return f"causal({offset})"
        return f"window({self.left}, {self.right}{', ' if offset else ''}{offset})"


def _offset(offset: int | None) -> int | None:
    if offset is not None and (isinstance(offset, bool) or not isinstance(offset, int)):
        raise DtypeError(f"offset must be an int or None. Received: {offset!r}")
    return offset
