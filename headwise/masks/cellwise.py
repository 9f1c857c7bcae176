"""Masks known only cell by cell: from a predicate, and from a dense tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from headwise.errors import DtypeError, MaskError
from headwise.masks.extent import extent_of
from headwise.masks.mask import Allowed, Index, Mask
from headwise.masks.tables import look_up


def from_predicate(fn: Callable[..., Allowed], *, batch: int | None = None, heads: int | None = None) -> Mask:
    """The pairs for which `fn(b, h, q, k)` is True: integer tensors that broadcast in, a bool tensor out.

    The signature is FlexAttention's `mask_mod`, with q counted from the first query of the call. Say `batch=` or
    `heads=` (their sizes) if the answer depends on b or h. Rectangles are answered by evaluating their cells, only when
    asked and only where the masks it is combined with leave the answer open.

    >>> print(from_predicate(lambda b, h, q, k: (q - k) * (q - k) <= 1).draw(4))
    ■ ■ · ·
    ■ ■ ■ ·
    · ■ ■ ■
    · · ■ ■
    """
    if not callable(fn):
        raise DtypeError(f"from_predicate: expected a function (b, h, q, k) -> bool. Received: {type(fn).__name__}")
    return Predicate(fn, batch, heads)


def from_tensor(allowed: Tensor) -> Mask:
    """The pairs that are True in a bool tensor [Q, K], [H, Q, K] or [B|1, H|1, Q, K].

    The tensor is kept, not copied, and a mask remembers what it worked out: do not change the tensor afterwards.

    >>> print(from_tensor(torch.tensor([[True, False], [True, True]])).draw(2))
    ■ ·
    ■ ■
    """
    if not isinstance(allowed, Tensor):
        raise DtypeError(f"from_tensor: expected a bool tensor. Received: {type(allowed).__name__}")
    if allowed.is_floating_point():
        raise DtypeError(
            f"from_tensor: expected a bool tensor, True = may attend. Received: {allowed.dtype}. "
            "An additive mask goes in bias="
        )
    if allowed.dtype != torch.bool:
        raise DtypeError(
            f"from_tensor: expected a bool tensor, True = may attend. Received: {allowed.dtype}. "
            "If 1 means may attend, pass mask.bool()"
        )
    if allowed.ndim not in (2, 3, 4):
        raise MaskError(f"from_tensor: expected [Q, K], [H, Q, K] or [B, H, Q, K]. Received: {list(allowed.shape)}")
    return Dense(allowed[(None,) * (4 - allowed.ndim)])


def as_mask(name: str, mask: object) -> Mask:
    """What an argument called `name` may be, a mask or a bool tensor, as a mask; DtypeError for anything else."""
    mask = from_tensor(mask) if isinstance(mask, Tensor) else mask
    if not isinstance(mask, Mask):
        raise DtypeError(f"{name} must be a headwise mask, a bool tensor or None. Received: {type(mask).__name__}")
    return mask


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Predicate(Mask):
    """fn(b, h, q, k). Its rectangles are exact."""

    fn: Callable[..., Allowed]
    batch_size: int | None = None
    head_count: int | None = None

    @property
    def batch(self) -> int | None:
        return self.batch_size

    @property
    def heads(self) -> int | None:
        return self.head_count

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        allowed = self.fn(b, h, q, k)
        if isinstance(allowed, Tensor) and allowed.dtype != torch.bool:
            raise DtypeError(
                f"from_predicate: the function must return bool, True = may attend. Received: {allowed.dtype}"
            )
        return allowed

    def __repr__(self) -> str:
        return f"from_predicate({getattr(self.fn, '__name__', type(self.fn).__name__)})"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Dense(Mask):
    """allowed[b, h, q, k]. Its rectangles are exact."""

    allowed: Tensor  # bool [B|1, H|1, Q, K]; a size of 1 in the last two means "the same for all" only if Q or K is 1

    @property
    def batch(self) -> int | None:
        return self.allowed.shape[0] if self.allowed.shape[0] > 1 else None

    @property
    def heads(self) -> int | None:
        return self.allowed.shape[1] if self.allowed.shape[1] > 1 else None

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        return look_up(self.allowed, b if self.batch else b * 0, h if self.heads else h * 0, q, k)

    def cells(self, q: Tensor, k: Tensor, *, b: int | None = None, h: int | None = None) -> Tensor:
        examples = slice(None) if b is None or not self.batch else slice(b, b + 1)
        heads = slice(None) if h is None or not self.heads else slice(h, h + 1)
        return self.allowed[examples, heads].to(q.device)[:, :, as_slice(q)][..., as_slice(k)]

    def grid(self, q_len: int, k_len: int, block_q: int, block_k: int) -> Tensor:
        def reduced(fill: bool, reduce: Callable[..., Tensor]) -> Tensor:
            # Blocks at the end are filled up with what does not change the answer.
            size = (0, -k_len % block_k, 0, -q_len % block_q)
            cells = torch.nn.functional.pad(self.allowed, size, value=fill) if any(size) else self.allowed
            cells = cells.view(torch.uint8)
            by_row = reduce(cells.unflatten(-1, (-1, block_k)), dim=-1)
            return reduce(by_row.unflatten(-2, (-1, block_q)), dim=-2).bool()

        return extent_of(reduced(False, torch.amax), reduced(True, torch.amin)).cpu()

    def seen_keys(self, q_len: int, k_len: int) -> Tensor:
        if not q_len:
            return super().seen_keys(q_len, k_len)
        return self.allowed.view(torch.uint8).amax(-2).bool().cpu()  # four times as fast as any(-2)

    def align(self, q_len: int, k_len: int) -> Mask:
        if list(self.allowed.shape[2:]) != [q_len, k_len]:
            raise MaskError(
                f"mask: expected the last two sizes to be Q = {q_len} and K = {k_len}. "
                f"Received: {list(self.allowed.shape)}. A mask over keys alone, [B, K], is masks.padding(mask)"
            )
        return self

    def natural_lengths(self) -> tuple[int, int] | None:
        return self.allowed.shape[2], self.allowed.shape[3]

    def __repr__(self) -> str:
        return f"from_tensor(<bool {list(self.allowed.shape)}>)"


def as_slice(index: Tensor) -> slice | Tensor:
    """An index tensor as the slice that it is, if it is one: much quicker on the CPU (elsewhere a look would wait)."""
    if index.device.type != "cpu" or not len(index) or torch.compiler.is_compiling():
        return index
    first, last = int(index[0]), int(index[-1])
    consecutive = last - first + 1 == len(index) and bool((index[1:] - index[:-1] == 1).all())
    return slice(first, last + 1) if consecutive else index
