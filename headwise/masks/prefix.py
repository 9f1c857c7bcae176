"""Prefix language model: the prompt is read both ways, what follows is causal."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.errors import MaskError
from headwise.masks.extent import Rectangles, extent_of
from headwise.masks.fields import INTEGERS, number, table
from headwise.masks.mask import Allowed, Index, Mask
from headwise.masks.tables import any_of, clamped, integer_table, look_up, optional_offset


def prefix(n: int | Sequence[int] | Tensor, offset: int | None = None) -> Mask:
    """Every query sees the first `n` keys, and the keys up to its own position. `n` is an int, or [B], one per example.

    `offset` as in `causal`.

    >>> print(prefix(2).draw(4))
    ■ ■ · ·
    ■ ■ · ·
    ■ ■ ■ ·
    ■ ■ ■ ■
    """
    table = integer_table("prefix: n", [n] if isinstance(n, int) else n, (1,), least=0)
    return Prefix(table, optional_offset("prefix", offset))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Prefix(Mask, kind="prefix"):
    """k < n[b] or k <= q + offset. Its rectangles are exact."""

    n: Tensor = table("B", *INTEGERS)
    offset: int | None = number(optional=True)

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        return (k < look_up(self.n, b)) | (k <= q + clamped(self.shift))

    def extents(self, r: Rectangles) -> Tensor:
        n, offset = r.by_example(self.n), clamped(self.shift)
        # A query sees keys below max(n, q + offset + 1), which only grows with q.
        fewest, most = torch.maximum(n, r.q_lo + (offset + 1)), torch.maximum(n, r.q_hi + offset)
        return extent_of(r.k_lo < most, r.k_hi <= fewest)

    def check(self, q_len: int, k_len: int) -> None:
        if any_of(self.n > k_len):
            raise MaskError(f"prefix: n must not exceed the {k_len} keys. Received: n={self.n.tolist()}")

    def natural_lengths(self) -> tuple[int, int] | None:
        length = max(8, int(self.n.max()))
        return length, length
