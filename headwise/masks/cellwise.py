"""Masks whose cells (pairs of a query and a key) are known only one by one: from a predicate, or a dense tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headwise.errors import DtypeError
from headwise.masks.bits import Bits, make_bits, packed_bits, row_blocks
from headwise.masks.cells import as_slice, make_strip_extents, of_one
from headwise.masks.fields import table
from headwise.masks.mask import Mask
from headwise.masks.memo import LARGE, undo_expand
from headwise.masks.padding import PaddingKeys
from headwise.masks.relation import Allowed, Index
from headwise.masks.tables import look_up, of_rank_4


def from_predicate(fn: Callable[..., Allowed], *, batch: int | None = None, heads: int | None = None) -> Mask:
    """Allow the pairs for which the function `fn(b, h, q, k)` returns True.

    `fn` gets integer tensors that broadcast, and returns a bool tensor. Its signature is FlexAttention's `mask_mod`,
    where q is counted from the first query of the call. Give `batch=` or `heads=` (their sizes) if the answer depends
    on b or h. To answer for a rectangle of pairs, `fn` is evaluated for each of them, but only if the answer is needed
    and does not follow from the masks with which this mask is combined. The answers are remembered, so the data that
    `fn` reads must not change.

    >>> print(from_predicate(lambda b, h, q, k: (q - k) * (q - k) <= 1).draw(4))
    ■ ■ · ·
    ■ ■ ■ ·
    · ■ ■ ■
    · · ■ ■
    """
    if not callable(fn):
        raise DtypeError(f"from_predicate: expected a function (b, h, q, k) -> bool. Received: fn={type(fn).__name__}")
    return Predicate(fn, batch, heads)


def from_tensor(allowed: Tensor) -> Mask:
    """Allow the True pairs of a bool tensor [Q, K], [H, Q, K] or [B|1, H|1, Q, K]; a Q or K of size 1 serves all.

    The mask keeps the tensor itself, and a call uses the contents that the tensor has at the time of the call. The call
    keeps a copy (of a large tensor, at one bit per cell), and the next call compares the tensor with this copy, which
    takes 15 µs for [512, 512] and 1 ms for [4096, 4096] on a CPU. `bits` copies the tensor when the mask is made, so
    that nothing is compared later.

    >>> print(from_tensor(torch.tensor([[True, False], [True, True]])).draw(2))
    ■ ·
    ■ ■
    """
    floats = isinstance(allowed, Tensor) and allowed.is_floating_point()
    hint = ". An additive mask goes in bias=" if floats else ". If 1 means may attend, pass mask.bool()"
    return Dense(of_rank_4("from_tensor", allowed, hint if isinstance(allowed, Tensor) else ""))


def fixed(mask: Mask, q_len: int, k_len: int) -> Mask:
    """Return the mask as it is now: later changes of its tensors, or of those its function reads, have no effect."""
    if not _has_function(mask):
        return mask.owned()
    return answers(mask, q_len, k_len)


def answers(mask: Mask, q_len: int, k_len: int) -> Mask:
    """Evaluate the mask for all pairs, and return a mask of the answers, stored at one bit per pair, on the CPU."""
    shape = (mask.batch or 1, mask.heads or 1, q_len, k_len)
    q, k = (torch.arange(n, device=mask.device or "cpu") for n in (q_len, k_len))
    return make_bits((mask.cells(q[rows], k).cpu() for rows in row_blocks(shape, 2**20)), k_len)


def _has_function(mask: Mask) -> bool:
    parts = [x for value in mask.__getstate__().values() for x in (value if isinstance(value, tuple) else (value,))]
    return isinstance(mask, Predicate) or any(_has_function(x) for x in parts if isinstance(x, Mask))


def as_mask(name: str, mask: object) -> Mask:
    """Return a `Mask` as it is, or a bool tensor as a mask; else raise DtypeError, which names the argument `name`."""
    mask = from_tensor(mask) if isinstance(mask, Tensor) else mask
    if not isinstance(mask, Mask):
        raise DtypeError(f"{name} must be a headwise mask, a bool tensor or None. Received: {type(mask).__name__}")
    return mask


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Predicate(Mask):
    """A mask that allows a pair if fn(b, h, q, k) is True. Its answers for rectangles (`extents`) are exact."""

    fn: Callable[..., Allowed]
    batch: int | None = None
    heads: int | None = None

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        allowed = self.fn(b, h, q, k)
        if isinstance(allowed, Tensor) and allowed.dtype != torch.bool:
            raise DtypeError(
                f"from_predicate: the function must return bool, True = may attend. Received: {allowed.dtype}"
            )
        return allowed

    def __repr__(self) -> str:
        sizes = {"batch": self.batch, "heads": self.heads}
        written = [f"{name}={size}" for name, size in sizes.items() if size is not None]
        return f"from_predicate({', '.join([getattr(self.fn, '__name__', type(self.fn).__name__), *written])})"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Dense(Mask, kind="dense", function="from_tensor"):
    """A mask that allows a pair if allowed[b, h, q, k] is True. Its answers for rectangles (`extents`) are exact."""

    unfit = "A mask over keys alone, [B, K], is masks.padding(mask)"
    allowed: Tensor = table("BHqk", torch.bool)  # a Q or K of size 1 serves all queries or keys, until it is aligned

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        return look_up(self.allowed, b, h, q, k)

    def copied(self) -> Mask:
        once = undo_expand(self.allowed)
        if once.numel() < LARGE or 1 in once.shape[2:]:
            return super().copied()
        with torch.inference_mode(False):
            return OfTensor(packed_bits(once).expand(*self.allowed.shape[:3], -1), self.allowed.shape[3])

    def to_bool(self, *lengths: Any, **options: Any) -> Tensor:
        return super().to_bool(*lengths, **options).clone()  # otherwise writing into the result would change the mask

    def cells(self, q: Tensor, k: Tensor, *, b: int | None = None, h: int | None = None) -> Tensor:
        return of_one(self.allowed, b, h).to(q.device)[:, :, as_slice(q)][..., as_slice(k)]

    def grid(self, q_len: int, k_len: int, block_q: int, block_k: int) -> Tensor:
        strips = self.allowed.view(torch.uint8).split(block_q, dim=2)
        return make_strip_extents(((rows.amax(2), rows.amin(2)) for rows in strips), block_k, whole=1)

    def seen_keys(self, q_len: int, k_len: int) -> Tensor:
        return self.allowed.view(torch.uint8).amax(-2).bool().cpu()  # four times as fast as any(-2)

    @property
    def fixed_lengths(self) -> tuple[int | None, int | None]:
        # A size of 1 stands for all queries or keys, as in scaled_dot_product_attention.
        rows, cols = self.allowed.shape[2:]
        return None if rows == 1 else rows, None if cols == 1 else cols

    def natural_lengths(self) -> tuple[int, int]:
        return self.allowed.shape[2], self.allowed.shape[3]

    def align(self, q_len: int, k_len: int) -> Mask:
        self.check(q_len, k_len)
        _, heads, rows, cols = self.allowed.shape
        if (rows, cols) == (q_len, k_len):
            return self
        if rows == heads == 1:
            return PaddingKeys(self.allowed[:, 0, 0].expand(-1, k_len))
        return Dense(self.allowed.expand(-1, -1, q_len, k_len))


class OfTensor(Bits, function="from_tensor"):
    """The copy that a call keeps of a large mask of `from_tensor`, at one bit per cell (pair of a query and a key)."""

    unfit = Dense.unfit


OfTensor.kind = Bits.kind
