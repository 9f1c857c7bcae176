"""Cuts a mask to some queries and keys of a longer sequence, for example to those that one process computes."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from headwise.errors import MaskError
from headwise.masks.extent import Rectangles
from headwise.masks.fields import INTEGERS, parts, table
from headwise.masks.mask import Combined, Mask
from headwise.masks.relation import Allowed, Index
from headwise.masks.tables import integer_table, look_up


def picked(mask: Mask, rows: Tensor, cols: Tensor) -> Mask:
    """Cut `mask` to some queries and keys: query q of the result is query rows[q] of `mask`, and key k is key cols[k].

    `rows` [Q] and `cols` [K] are ascending integers. `mask` must already know the positions of its queries: pass
    `mask.aligned(q_len, k_len)`.

    >>> print(picked(causal(offset=0), torch.tensor([0, 1, 6, 7]), torch.arange(8)).draw(4, 8))
    ■ · · · · · · ·
    ■ ■ · · · · · ·
    ■ ■ ■ ■ ■ ■ ■ ·
    ■ ■ ■ ■ ■ ■ ■ ■
    """
    made = {name: integer_table(f"picked: {name}", x, (1,), least=0) for name, x in (("rows", rows), ("cols", cols))}
    for name, x in made.items():
        if bool((x.diff() <= 0).any()):
            raise MaskError(f"picked: {name}: expected positions that rise. Received: {name}={x.tolist()[:16]}")
    return Picked(mask, **made)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Picked(Combined, kind="picked"):
    """A mask that allows a pair (q, k) if the mask `part` allows the pair (rows[q], cols[k]).

    Its `extents` ask `part` about the smallest rectangle that contains the rows and columns in question. They may say
    SOME where the true answer is ALL or NONE, if `part` says SOME for this rectangle.
    """

    part: Mask = parts(several=False)
    rows: Tensor = table("q", *INTEGERS)
    cols: Tensor = table("k", *INTEGERS)

    @property
    def parts(self) -> tuple[Mask, ...]:  # type: ignore[override]
        return (self.part,)

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        return self.part.allows(b, h, look_up(self.rows, q), look_up(self.cols, k))

    def extents(self, r: Rectangles) -> Tensor:
        rows, cols = self.rows.cpu(), self.cols.cpu()
        of_rows = (rows[r.q_lo.long()], rows[r.q_hi.long() - 1] + 1)
        of_cols = (cols[r.k_lo.long()], cols[r.k_hi.long() - 1] + 1)
        return self.part.extents(Rectangles(*of_rows, *of_cols, r.wanted, r.coarse))

    def patterns(self, r: Rectangles) -> list[Tensor]:
        return Mask.patterns(self, r)  # its positions differ from those of its part

    @property
    def fixed_lengths(self) -> tuple[int, int]:
        return len(self.rows), len(self.cols)

    @property
    def key_only(self) -> bool:
        return self.part.key_only

    def band(self) -> tuple[float, float] | None:
        band = self.part.band()
        if band is None or not _follow(self.rows) or not _follow(self.cols):
            return None
        shift = int(self.rows[0] - self.cols[0])
        return band[0] + shift, band[1] + shift

    def __repr__(self) -> str:
        rows, cols = (_written(x) for x in (self.rows, self.cols))
        return f"picked({self.part!r}, <rows {rows}>, <cols {cols}>)"


def _follow(places: Tensor) -> bool:
    """Whether the positions are consecutive, without a gap."""
    return len(places) > 0 and int(places[-1] - places[0]) == len(places) - 1


def _written(places: Tensor) -> str:
    if not len(places):
        return "none"
    ends = torch.cat([(places.diff() > 1).nonzero()[:, 0], torch.tensor([len(places) - 1])]).tolist()
    begins = [0, *(end + 1 for end in ends[:-1])]
    shown = [f"{int(places[i])}-{int(places[j])}" for i, j in zip(begins[:4], ends[:4], strict=True)]
    return ", ".join([*shown, *(["…"] if len(ends) > 4 else [])])
