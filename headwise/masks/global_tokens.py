"""Global tokens: a few positions that see everything and are seen by all (Longformer, Beltagy et al. 2020)."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.errors import MaskError, brief
from headwise.masks.documents import check_queries_among_keys
from headwise.masks.extent import Rectangles, make_extent
from headwise.masks.fields import INTEGERS, number, table
from headwise.masks.mask import Mask
from headwise.masks.relation import Allowed, Index
from headwise.masks.tables import counts, has_true, integer, integer_table, look_up


def global_tokens(indices: int | Sequence[int] | Tensor, offset: int | None = None) -> Mask:
    """Allow the pairs in which the query or the key is at one of the positions `indices`.

    Combine it with a window by `|`. `offset` is the position of the first query, from 0 to K - Q; None means K - Q.

    >>> print(global_tokens([0]).draw(4))
    ■ ■ ■ ■
    ■ · · ·
    ■ · · ·
    ■ · · ·
    >>> print((window(1, 1) | global_tokens([0])).draw(5))
    ■ ■ ■ ■ ■
    ■ ■ ■ · ·
    ■ ■ ■ ■ ·
    ■ · ■ ■ ■
    ■ · · ■ ■
    """
    name = "global_tokens: indices"
    found = integer_table(name, [indices] if isinstance(indices, int) else indices, (1,), least=0)
    if not len(found):
        raise MaskError(f"{name}: expected at least one position. Received: none")
    return GlobalTokens(found.unique(), integer("global_tokens: offset", offset, optional=True))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class GlobalTokens(Mask, kind="global_tokens"):
    """A mask that allows a pair if q + offset is in indices, or k is in indices. Its `extents` are exact."""

    indices: Tensor = table("N", *INTEGERS)  # sorted, each once
    offset: int | None = number(optional=True)
    is_global: Tensor | None = dataclasses.field(default=None, compare=False)  # bool [K], known once it is aligned

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        position = q + self.shift
        if self.is_global is None:
            return functools.reduce(operator.or_, [(position == i) | (k == i) for i in self.indices.tolist()])
        return look_up(self.is_global, position) | look_up(self.is_global, k)

    def extents(self, r: Rectangles) -> Tensor:
        if self.is_global is None:
            return super().extents(r)
        table = self.remember(("counts",), lambda mask: counts(mask.is_global))
        of_q = table[r.q_hi + self.shift] - table[r.q_lo + self.shift]
        of_k = table[r.k_hi] - table[r.k_lo]
        return make_extent((of_q > 0) | (of_k > 0), (of_q == r.q_hi - r.q_lo) | (of_k == r.k_hi - r.k_lo))[None, None]

    def patterns(self, r: Rectangles) -> list[Tensor]:
        if self.is_global is None:
            return super().patterns(r)
        table = self.remember(("counts",), lambda mask: counts(mask.is_global))
        of_q = table[r.q_hi + self.shift] > table[r.q_lo + self.shift]
        of_k = table[r.k_hi] > table[r.k_lo]
        places = torch.where(of_q, r.q_lo, -1), torch.where(of_k, r.k_lo, -1)
        return [x.expand(r.shape)[None, None] for x in places]

    def check(self, q_len: int, k_len: int) -> None:
        if has_true((self.indices < 0) | (self.indices >= k_len)):
            raise MaskError(
                f"global_tokens: expected positions from 0 to {k_len - 1}. "
                f"Received: indices={brief(self.indices.tolist())}"
            )
        check_queries_among_keys("global_tokens", self.offset, q_len, k_len)

    def align(self, q_len: int, k_len: int) -> Mask:
        is_global = torch.zeros(k_len, dtype=torch.bool, device=self.indices.device)
        aligned = super().align(q_len, k_len)
        is_global[self.indices] = True
        return dataclasses.replace(aligned, is_global=is_global)  # type: ignore[call-arg]

    def natural_lengths(self) -> tuple[int, int] | None:
        q_len = max(8, int(self.indices[-1]) + 1 - self.shift)
        if self.is_global is not None:
            q_len = len(self.is_global) - self.shift
        return q_len, q_len + self.shift
