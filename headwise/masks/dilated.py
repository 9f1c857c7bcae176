"""Dilated attention: a query sees every `step`-th key."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from headwise.masks.band import causal, window
from headwise.masks.extent import Rectangles, make_extent
from headwise.masks.fields import number
from headwise.masks.mask import Mask
from headwise.masks.relation import Allowed, Index
from headwise.masks.tables import FAR, integer


def dilated(step: int, offset: int | None = None) -> Mask:
    """Let each query see the keys whose distance from it is a multiple of `step`, which is at most 2**30.

    Limit the distance with `& window(...)`. `offset` is the same as in `causal`.

    >>> print(dilated(2).draw(5))
    ■ · ■ · ■
    · ■ · ■ ·
    ■ · ■ · ■
    · ■ · ■ ·
    ■ · ■ · ■
    """
    return Dilated(integer("dilated: step", step, least=1, most=FAR), integer("dilated: offset", offset, optional=True))


def strided(step: int) -> Mask:
    """Make Sparse Transformers' mask (Child et al. 2019): queries see the last `step` keys, and every `step`-th before.

    >>> print(strided(2).draw(6))
    ■ · · · · ·
    ■ ■ · · · ·
    ■ ■ ■ · · ·
    · ■ ■ ■ · ·
    ■ · ■ ■ ■ ·
    · ■ · ■ ■ ■
    """
    step = integer("strided: step", step, least=1, most=FAR)
    return causal() & (window(step - 1, 0) | Dilated(step))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Dilated(Mask, kind="dilated"):
    """A mask that allows a pair if (q + offset - k) is a multiple of step. Its answers for rectangles are exact."""

    step: int = number(1, FAR)
    offset: int | None = number(optional=True)

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        return (q + self.shift % self.step - k) % self.step == 0

    def extents(self, r: Rectangles) -> Tensor:
        lowest, highest = r.q_lo + self.shift % self.step - (r.k_hi - 1), r.q_hi - 1 + self.shift % self.step - r.k_lo
        nearest = highest - highest % self.step  # the largest multiple of step that is not above highest
        one_distance = (lowest == highest) | (self.step == 1)
        return make_extent(nearest >= lowest, (nearest >= lowest) & one_distance)[None, None]

    def patterns(self, r: Rectangles) -> list[Tensor]:
        return [((r.k_lo - r.q_lo) % self.step).expand(r.shape)[None, None]]
