"""Prefix language model: the prompt is read in both directions, the rest is causal."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch import Tensor

from headwise.masks.band import Band
from headwise.masks.extent import Rectangles
from headwise.masks.fields import INTEGERS, number, table
from headwise.masks.mask import Mask, Or
from headwise.masks.padding import PaddingLengths
from headwise.masks.relation import Allowed, Index
from headwise.masks.tables import check_at_most, integer, integer_table


def prefix(n: int | Sequence[int] | Tensor, offset: int | None = None) -> Mask:
    """Let every query see the first `n` keys, and the keys up to its own position.

    `n` is an int, or integers [B], one for each example. `offset` is the same as in `causal`.

    >>> print(prefix(2).draw(4))
    ■ ■ · ·
    ■ ■ · ·
    ■ ■ ■ ·
    ■ ■ ■ ■
    """
    table = integer_table("prefix: n", [n] if isinstance(n, int) else n, (1,), least=0)
    return Prefix(table, integer("prefix: offset", offset, optional=True))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Prefix(Mask, kind="prefix"):
    """A mask that allows a pair if k < n[b] or k <= q + offset. Its answers for rectangles (`extents`) are exact."""

    n: Tensor = table("B", *INTEGERS)
    offset: int | None = number(optional=True)

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        return self._joined.allows(b, h, q, k)

    def extents(self, r: Rectangles) -> Tensor:
        return self._joined.extents(r)

    def patterns(self, r: Rectangles) -> list[Tensor]:
        return self._joined.patterns(r)

    @property
    def _joined(self) -> Mask:
        # Not by `|`, which torch.compile of torch 2.8 cannot follow between masks.
        return Or((PaddingLengths(self.n), Band(None, 0, self.shift)))

    def check(self, q_len: int, k_len: int) -> None:
        check_at_most("prefix: n", self.n, k_len)

    def natural_lengths(self) -> tuple[int, int] | None:
        length = max(8, int(self.n.max()))
        return length, length
