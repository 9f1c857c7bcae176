"""Masks known only cell by cell: from a predicate, and from a dense tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.errors import DtypeError
from headwise.masks.extent import extent_of
from headwise.masks.fields import table
from headwise.masks.mask import Allowed, Index, Mask
from headwise.masks.padding import PaddingKeys
from headwise.masks.tables import look_up, of_rank_4
from headwise.tracing import is_traced


def from_predicate(fn: Callable[..., Allowed], *, batch: int | None = None, heads: int | None = None) -> Mask:
    """The pairs for which `fn(b, h, q, k)` is True: integer tensors that broadcast in, a bool tensor out.

    The signature is FlexAttention's `mask_mod`, with q counted from the first query of the call. Say `batch=` or
    `heads=` (their sizes) if the answer depends on b or h. Rectangles are answered by evaluating their cells, only when
    asked and only where the masks it is combined with leave the answer open. The answers are remembered: what the
    function reads must not change.

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
    """The pairs that are True in a bool tensor [Q, K], [H, Q, K] or [B|1, H|1, Q, K]; Q and K may be 1, for all alike.

    The tensor is kept, not copied. What the mask remembers is dropped when the tensor is changed in place, as far as
    that can be seen: see `Mask.version`.

    >>> print(from_tensor(torch.tensor([[True, False], [True, True]])).draw(2))
    ■ ·
    ■ ■
    """
    floats = isinstance(allowed, Tensor) and allowed.is_floating_point()
    hint = ". An additive mask goes in bias=" if floats else ". If 1 means may attend, pass mask.bool()"
    return Dense(of_rank_4("from_tensor", allowed, hint if isinstance(allowed, Tensor) else ""))


def as_mask(name: str, mask: object) -> Mask:
    """A mask or a bool tensor, given as the argument `name`, as a mask. Raises DtypeError for anything else."""
    mask = from_tensor(mask) if isinstance(mask, Tensor) else mask
    if not isinstance(mask, Mask):
        raise DtypeError(f"{name} must be a headwise mask, a bool tensor or None. Received: {type(mask).__name__}")
    return mask


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Predicate(Mask):
    """fn(b, h, q, k). Its rectangles are exact."""

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
    """allowed[b, h, q, k]. Its rectangles are exact."""

    unfit = "A mask over keys alone, [B, K], is masks.padding(mask)"
    allowed: Tensor = table("BHqk", torch.bool)  # a size of 1 in the last two is the same for all, until it is aligned

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        return look_up(self.allowed, b, h, q, k)

    def cells(self, q: Tensor, k: Tensor, *, b: int | None = None, h: int | None = None) -> Tensor:
        return of_one(self.allowed, b, h).to(q.device)[:, :, as_slice(q)][..., as_slice(k)]

    def grid(self, q_len: int, k_len: int, block_q: int, block_k: int) -> Tensor:
        strips = self.allowed.view(torch.uint8).split(block_q, dim=2)
        return extents_of_strips(((rows.amax(2), rows.amin(2)) for rows in strips), block_k, whole=1)

    def seen_keys(self, q_len: int, k_len: int) -> Tensor:
        return self.allowed.view(torch.uint8).amax(-2).bool().cpu()  # four times as fast as any(-2)

    @property
    def fixed_lengths(self) -> tuple[int | None, int | None]:
        # What is given once is for all queries or keys, as in scaled_dot_product_attention.
        rows, cols = self.allowed.shape[2:]
        return None if rows == 1 else rows, None if cols == 1 else cols

    def align(self, q_len: int, k_len: int) -> Mask:
        self.check(q_len, k_len)
        _, heads, rows, cols = self.allowed.shape
        if (rows, cols) == (q_len, k_len):
            return self
        if rows == heads == 1:
            return PaddingKeys(self.allowed[:, 0, 0].expand(-1, k_len))
        return Dense(self.allowed.expand(-1, -1, q_len, k_len))


def extents_of_strips(strips: Iterable[tuple[Tensor, Tensor]], width: int, *, whole: int) -> Tensor:
    """Extent codes of blocks `width` columns wide, from the highest and the lowest value of each column of a strip.

    A value is 0 where nothing is allowed, and `whole` where all is. Strips [B, H, n]; codes [B, H, strips, ⌈n/width⌉].
    """
    found = []
    for highest, lowest in strips:
        fill = (0, -highest.shape[-1] % width)  # with what does not change the answer
        some = pad(highest, fill).unflatten(-1, (-1, width)).amax(-1) > 0
        every = pad(lowest, fill, value=whole).unflatten(-1, (-1, width)).amin(-1) == whole
        found.append(extent_of(some, every))
    return torch.stack(found, dim=2).cpu()


def of_one(table: Tensor, b: int | None, h: int | None) -> Tensor:
    """A table [B|1, H|1, ...] cut to one example or one head, if they are given."""
    examples = slice(None) if b is None or len(table) == 1 else slice(b, b + 1)
    heads = slice(None) if h is None or table.shape[1] == 1 else slice(h, h + 1)
    return table[examples, heads]


def as_slice(index: Tensor) -> slice | Tensor:
    """An index tensor as the slice that it is, if it is one: much quicker on the CPU (elsewhere a look would wait)."""
    if index.device.type != "cpu" or not len(index) or is_traced():
        return index
    first, last = int(index[0]), int(index[-1])
    consecutive = last - first + 1 == len(index) and bool((index[1:] - index[:-1] == 1).all())
    return slice(first, last + 1) if consecutive else index
