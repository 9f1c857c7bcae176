"""Padding: keys that stand for no token."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.errors import DtypeError, MaskError
from headwise.masks.extent import extent_of
from headwise.masks.mask import Allowed, Index, Mask
from headwise.masks.tables import counts, integer_table, is_seen, look_up


def padding(lengths: int | Sequence[int] | Tensor) -> Mask:
    """Every query sees the real keys of its example: the first `lengths[b]`, or where a bool tensor [B, K] is True.

    `lengths` is an int, a sequence or integer tensor [B], or a bool tensor [B, K] with True = a real token (what
    Hugging Face calls attention_mask, as bool). It hides keys, not queries: the rows of padded queries are computed and
    may be ignored.

    >>> print(padding([2, 3]).draw(3, b=0))
    ■ ■ ·
    ■ ■ ·
    ■ ■ ·
    >>> print(padding(torch.tensor([[False, True, True]])).draw(3))
    · ■ ■
    · ■ ■
    · ■ ■
    """
    if isinstance(lengths, Tensor) and lengths.dtype == torch.bool:
        if lengths.ndim != 2:
            raise MaskError(f"padding: a bool tensor must be [B, K]. Received: {list(lengths.shape)}")
        return PaddingKeys(lengths)
    if isinstance(lengths, Tensor) and lengths.is_floating_point():
        raise DtypeError(f"padding: expected lengths [B] (int) or real tokens [B, K] (bool). Received: {lengths.dtype}")
    table = integer_table("padding: lengths", [lengths] if isinstance(lengths, int) else lengths, (1,))
    if is_seen(table < 0):
        raise MaskError(f"padding: lengths must not be negative. Received: {table.tolist()}")
    return PaddingLengths(table)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PaddingLengths(Mask):
    """k < lengths[b]. Its rectangles are exact."""

    lengths: Tensor  # [B], or [1] for all examples

    @property
    def batch(self) -> int | None:
        return len(self.lengths) if len(self.lengths) > 1 else None

    @property
    def key_only(self) -> bool:
        return True

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        return k < look_up(self.lengths, b if self.batch else b * 0)

    def rectangles(
        self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor, wanted: Tensor | None = None
    ) -> Tensor:
        k_lo, k_hi = torch.broadcast_tensors(k_lo, k_hi, q_lo)[:2]
        lengths = self.lengths.cpu().view(-1, *[1] * (k_lo.ndim + 1))
        return extent_of(k_lo < lengths, k_hi <= lengths)

    def align(self, q_len: int, k_len: int) -> Mask:
        if is_seen(self.lengths > k_len):
            raise MaskError(f"padding: lengths must not exceed the {k_len} keys. Received: {self.lengths.tolist()}")
        return self

    def natural_lengths(self) -> tuple[int, int] | None:
        longest = int(self.lengths.max())
        return longest, longest

    def __repr__(self) -> str:
        return f"padding({_shorten(self.lengths)})"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PaddingKeys(Mask):
    """real[b, k]. Its rectangles are exact."""

    real: Tensor  # [B, K]

    @property
    def batch(self) -> int | None:
        return self.real.shape[0] if self.real.shape[0] > 1 else None

    @property
    def key_only(self) -> bool:
        return True

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        return look_up(self.real, b if self.batch else b * 0, k)

    def rectangles(
        self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor, wanted: Tensor | None = None
    ) -> Tensor:
        k_lo, k_hi = torch.broadcast_tensors(k_lo, k_hi, q_lo)[:2]
        table = self.remember(("counts",), lambda: counts(self.real))
        allowed = table[:, k_hi] - table[:, k_lo]
        return extent_of(allowed > 0, allowed == k_hi - k_lo)[:, None]

    def align(self, q_len: int, k_len: int) -> Mask:
        if self.real.shape[1] != k_len:
            raise MaskError(f"padding: the bool tensor [B, K] must have K = {k_len}. Received: {list(self.real.shape)}")
        return self

    def natural_lengths(self) -> tuple[int, int] | None:
        return self.real.shape[1], self.real.shape[1]

    def __repr__(self) -> str:
        return f"padding(<bool {list(self.real.shape)}>)"


def _shorten(lengths: Tensor) -> str:
    values = lengths.tolist()
    return repr(values[0] if len(values) == 1 else values) if len(values) <= 6 else f"<{len(values)} lengths>"
