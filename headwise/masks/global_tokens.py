"""Global tokens: a few positions that see everything and are seen by all (Longformer, Beltagy et al. 2020)."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.errors import MaskError
from headwise.masks.extent import extent_of
from headwise.masks.mask import Allowed, Index, Mask
from headwise.masks.tables import counts, integer_table, is_seen, look_up


def global_tokens(indices: int | Sequence[int] | Tensor) -> Mask:
    """The pairs in which the query or the key is one of these positions. Join it to a window with `|`.

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
    table = integer_table("global_tokens: indices", [indices] if isinstance(indices, int) else indices, (1,))
    if not len(table):
        raise MaskError("global_tokens: expected at least one position. Received: none")
    if is_seen(table < 0):
        raise MaskError(f"global_tokens: positions count from 0. Received: {table.tolist()}")
    return GlobalTokens(table.unique())


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class GlobalTokens(Mask):
    """q + offset in indices, or k in indices. Its rectangles are exact."""

    indices: Tensor  # sorted, each once
    offset: int | None = None
    is_global: Tensor | None = None  # bool [K], known once the mask is aligned

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        position = q + (self.offset or 0)
        if self.is_global is None:
            return functools.reduce(operator.or_, [(position == i) | (k == i) for i in self.indices.tolist()])
        return look_up(self.is_global, position) | look_up(self.is_global, k)

    def rectangles(
        self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor, wanted: Tensor | None = None
    ) -> Tensor:
        if self.is_global is None:
            return super().rectangles(q_lo, q_hi, k_lo, k_hi, wanted)
        is_global, offset = self.is_global, self.offset or 0
        table = self.remember(("counts",), lambda: counts(is_global))
        of_q = table[q_hi + offset] - table[q_lo + offset]
        of_k = table[k_hi] - table[k_lo]
        return extent_of((of_q > 0) | (of_k > 0), (of_q == q_hi - q_lo) | (of_k == k_hi - k_lo))[None, None]

    def align(self, q_len: int, k_len: int) -> Mask:
        if is_seen(self.indices >= k_len) or q_len > k_len:
            raise MaskError(
                f"global_tokens: expected positions below the {k_len} keys, and no more queries than keys. "
                f"Received: {self.indices.tolist()}, {q_len} queries"
            )
        is_global = torch.zeros(k_len, dtype=torch.bool, device=self.indices.device)
        is_global[self.indices] = True
        offset = k_len - q_len if self.offset is None else self.offset
        return dataclasses.replace(self, offset=offset, is_global=is_global)

    def natural_lengths(self) -> tuple[int, int] | None:
        length = max(8, int(self.indices[-1]) + 1)
        return length, length

    def __repr__(self) -> str:
        shown = self.indices.tolist() if len(self.indices) <= 8 else f"<{len(self.indices)} positions>"
        return f"global_tokens({shown})"
