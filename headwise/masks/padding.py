"""Padding masks: they hide the keys that belong to no token."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.errors import DtypeError, MaskError, brief
from headwise.masks.extent import Rectangles, make_extent
from headwise.masks.fields import INTEGERS, table
from headwise.masks.mask import Mask
from headwise.masks.memo import converted
from headwise.masks.relation import Allowed, Index
from headwise.masks.tables import as_tensor, check_at_most, counts, has_true, integer_table, look_up


def padding(real: Sequence[Any] | Tensor) -> Mask:
    """Let every query see the real keys of its example: `real` [B, K], or [K] for all examples, True or 1 = a token.

    `real` is bool, or has the integers 0 and 1, as the attention_mask of Hugging Face. The mask hides keys, not
    queries: the rows of padded queries are computed and may be ignored. `lengths` is a shorter form if the real keys
    come first.

    Raises DtypeError for other dtypes, and MaskError for other numbers or ranks.

    >>> print(padding([0, 1, 1]).draw(3))
    · ■ ■
    · ■ ■
    · ■ ■
    >>> print(padding(torch.tensor([[True, True, True], [True, False, True]])).draw(3, b=1))
    ■ · ■
    ■ · ■
    ■ · ■
    """
    found = as_tensor("padding: real", real)
    hint = "If these are numbers of real tokens, use masks.lengths"
    if found.is_floating_point() or found.is_complex():
        raise DtypeError(f"padding: expected bool, or integers 0 and 1. Received: real={found.dtype}")
    if found.ndim not in (1, 2):
        raise MaskError(f"padding: expected real tokens [B, K] or [K]. Received: real={list(found.shape)}. {hint}")
    if found.dtype != torch.bool and has_true((found != 0) & (found != 1)):
        received = brief(found.unique().tolist())
        raise MaskError(f"padding: expected True or 1 for a real token, False or 0. Received: {received}. {hint}")
    return PaddingKeys(converted(found if found.ndim == 2 else found[None], torch.bool))


def lengths(n: int | Sequence[int] | Tensor) -> Mask:
    """Let every query see the first `n` keys: an int for all examples, or integers [B], one per example.

    The mask hides keys, not queries. Use `padding` if the real keys do not come first.

    >>> print(lengths([2, 3]).draw(3, b=0))
    ■ ■ ·
    ■ ■ ·
    ■ ■ ·
    """
    return PaddingLengths(integer_table("lengths: n", [n] if isinstance(n, int) else n, (1,), least=0))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PaddingLengths(Mask, kind="padding_lengths", function="lengths"):
    """A mask that allows a pair if k < lengths[b]. Its answers for rectangles (`extents`) are exact."""

    lengths: Tensor = table("B", *INTEGERS)

    @property
    def key_only(self) -> bool:
        return True

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        return k < look_up(self.lengths, b)

    def extents(self, r: Rectangles) -> Tensor:
        n = self.lengths.cpu().view(-1, *[1] * (r.k_lo.ndim + 1))
        return make_extent(r.k_lo < n, r.k_hi <= n)

    def check(self, q_len: int, k_len: int) -> None:
        check_at_most("lengths: n", self.lengths, k_len)

    def natural_lengths(self) -> tuple[int, int] | None:
        longest = int(self.lengths.max())
        return longest, longest


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PaddingKeys(Mask, kind="padding_keys", function="padding"):
    """A mask that allows a pair if real[b, k] is True. Its answers for rectangles (`extents`) are exact."""

    real: Tensor = table("Bk", torch.bool)

    @property
    def key_only(self) -> bool:
        return True

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        return look_up(self.real, b, k)

    def extents(self, r: Rectangles) -> Tensor:
        table = self.remember(("counts",), lambda mask: counts(mask.real))
        allowed = table[:, r.k_hi] - table[:, r.k_lo]
        return make_extent(allowed > 0, allowed == r.k_hi - r.k_lo)[:, None]
