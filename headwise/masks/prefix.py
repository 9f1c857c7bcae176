"""Prefix language model: the prompt is read both ways, what follows is causal."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.errors import MaskError
from headwise.masks.extent import extent_of
from headwise.masks.mask import Allowed, Index, Mask
from headwise.masks.tables import integer_table, is_seen, look_up


def prefix(n: int | Sequence[int] | Tensor) -> Mask:
    """Every query sees the first `n` keys, and the keys up to its own position. `n` is an int, or one an example [B].

    >>> print(prefix(2).draw(4))
    ■ ■ · ·
    ■ ■ · ·
    ■ ■ ■ ·
    ■ ■ ■ ■
    """
    table = integer_table("prefix: n", [n] if isinstance(n, int) else n, (1,))
    if is_seen(table < 0):
        raise MaskError(f"prefix: n must not be negative. Received: {table.tolist()}")
    return Prefix(table)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Prefix(Mask):
    """k < n[b] or k <= q + offset. Its rectangles are exact."""

    n: Tensor  # [B], or [1] for all examples
    offset: int | None = None

    @property
    def batch(self) -> int | None:
        return len(self.n) if len(self.n) > 1 else None

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        return (k < look_up(self.n, b if self.batch else b * 0)) | (k <= q + (self.offset or 0))

    def rectangles(
        self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor, wanted: Tensor | None = None
    ) -> Tensor:
        offset = self.offset or 0
        n = self.n.cpu().view(-1, *[1] * (torch.broadcast_tensors(q_lo, k_lo)[0].ndim + 1))
        # A query sees keys below max(n, q + offset + 1), which only grows with q.
        fewest, most = torch.maximum(n, q_lo + offset + 1), torch.maximum(n, q_hi + offset)
        return extent_of(k_lo < most, k_hi <= fewest)

    def align(self, q_len: int, k_len: int) -> Mask:
        if is_seen(self.n > k_len):
            raise MaskError(f"prefix: n must not exceed the {k_len} keys. Received: {self.n.tolist()}")
        return self if self.offset is not None else dataclasses.replace(self, offset=k_len - q_len)

    def natural_lengths(self) -> tuple[int, int] | None:
        length = max(8, int(self.n.max()))
        return length, length

    def __repr__(self) -> str:
        return f"prefix({self.n.tolist() if self.batch else int(self.n[0])})"
