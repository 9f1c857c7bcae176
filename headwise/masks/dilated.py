"""Dilated attention: every `step`-th key."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from headwise.masks.band import causal, window
from headwise.masks.extent import extent_of
from headwise.masks.mask import Allowed, Index, Mask
from headwise.masks.tables import index_at


def dilated(step: int) -> Mask:
    """The keys whose distance to the query is a multiple of `step`. Bound it with `& window(...)`.

    >>> print(dilated(2).draw(5))
    ■ · ■ · ■
    · ■ · ■ ·
    ■ · ■ · ■
    · ■ · ■ ·
    ■ · ■ · ■
    """
    return Dilated(index_at("dilated: step", step, minimum=1))


def strided(step: int) -> Mask:
    """The strided pattern of Sparse Transformers (Child et al. 2019): the last `step` keys, and every `step`-th before.

    >>> print(strided(2).draw(6))
    ■ · · · · ·
    ■ ■ · · · ·
    ■ ■ ■ · · ·
    · ■ ■ ■ · ·
    ■ · ■ ■ ■ ·
    · ■ · ■ ■ ■
    """
    step = index_at("strided: step", step, minimum=1)
    return causal() & (window(step - 1, 0) | Dilated(step))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Dilated(Mask):
    """(q + offset - k) is a multiple of step. Its rectangles are exact."""

    step: int
    offset: int | None = None

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        return (q + (self.offset or 0) - k) % self.step == 0

    def rectangles(
        self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor, wanted: Tensor | None = None
    ) -> Tensor:
        offset = self.offset or 0
        lowest, highest = q_lo + offset - (k_hi - 1), q_hi - 1 + offset - k_lo
        nearest = highest - highest % self.step  # the largest multiple of step that is not above highest
        one_distance = (lowest == highest) | (self.step == 1)
        return extent_of(nearest >= lowest, (nearest >= lowest) & one_distance)[None, None]

    def align(self, q_len: int, k_len: int) -> Mask:
        return self if self.offset is not None else dataclasses.replace(self, offset=k_len - q_len)

    def __repr__(self) -> str:
        return f"dilated({self.step})"
