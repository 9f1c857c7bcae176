"""What a mask is: one predicate, `allows(b, h, q, k)`, that can also answer for whole rectangles, `extent(...)`.

True = may attend, always. From these two answers come the dense mask, the additive mask, the blocks a kernel may skip,
FlexAttention's BlockMask and the drawing. `&`, `|` and `~` combine both answers; nothing of size Q × K is built unless
it is asked for.

Positions. The last query stands at the last key (bottom-right alignment), so that a step with a cache is right by
default: query q has position q + K - Q on the key axis. `aligned(q_len, k_len)` fixes that offset; a mask that was not
aligned answers as if Q == K.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from headwise.errors import MaskError
from headwise.masks import cells
from headwise.masks.extent import Extent

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

# What `allows` takes and gives: ints and bools, or NumPy, torch or Keras arrays of them that broadcast.
Index = Any
Allowed = Any

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Mask:
    """Which queries may attend to which keys. Immutable; combine with `&`, `|`, `~`.

    A subclass is a frozen dataclass that defines `allows` and, where it knows better than evaluating every cell,
    `rectangles`.
    """

    @property
    def batch(self) -> int | None:
        """The batch size this mask is made for; None if all examples share it."""
        return None

    @property
    def heads(self) -> int | None:
        """The number of query heads this mask is made for; None if all heads share it."""
        return None

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        """Whether query `q` may attend to key `k` in example `b`, head `h`: ints, or integer arrays that broadcast."""
        raise NotImplementedError

    def rectangles(
        self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor, wanted: Tensor | None = None
    ) -> Tensor:
        """Extent codes of the rectangles [q_lo, q_hi) × [k_lo, k_hi), none of them empty: int8 [B|1, H|1, *shape].

        The bounds are integer tensors that broadcast to `shape`. ALL and NONE are never wrong. Where `wanted` (bool,
        `shape`) is False the answer does not matter and need not be worked out. This default evaluates every cell.
        """
        return cells.evaluate_rectangles(self, q_lo, q_hi, k_lo, k_hi, wanted)

    @property
    def cellwise(self) -> bool:
        """Whether rectangles are answered by evaluating their cells, which costs as much as the dense mask."""
        return type(self).rectangles is Mask.rectangles

    def grid(self, q_len: int, k_len: int, block_q: int, block_k: int) -> Tensor:
        """What `blocks` does, for an aligned mask and without its memory."""
        q_lo = torch.arange(0, q_len, block_q, dtype=torch.int32)[:, None]
        k_lo = torch.arange(0, k_len, block_k, dtype=torch.int32)[None, :]
        q_hi, k_hi = (q_lo + block_q).clamp(max=q_len), (k_lo + block_k).clamp(max=k_len)
        # In strips, so that the temporaries stay small beside the grid itself.
        strip = max(1, 2**22 // max(1, k_lo.numel()))
        strips = range(0, len(q_lo), strip)
        return torch.cat(
            [self.rectangles(q_lo[i : i + strip], q_hi[i : i + strip], k_lo, k_hi) for i in strips], dim=-2
        )

    def seen_keys(self, q_len: int, k_len: int) -> Tensor:
        """What `used_keys` does, for an aligned mask and without its memory: bool [B|1, H|1, K], on the CPU."""
        return cells.seen_keys(self, q_len, k_len)

    def align(self, q_len: int, k_len: int) -> Mask:
        """What `aligned` does, without its memory; MaskError if the mask cannot meet these lengths."""
        return self

    @property
    def key_only(self) -> bool:
        """Whether the answer depends on the key alone, so that [B, 1, 1, K] says it all."""
        return False

    def band(self) -> tuple[float, float] | None:
        """(lowest, highest) k - q that is allowed, where the mask is exactly such a band; else None."""
        return None

    # Everything below follows from the above.

    def aligned(self, q_len: int, k_len: int) -> Mask:
        """This mask for Q queries and K keys, the last query at the last key. Raises MaskError if it does not fit."""
        return self.remember(("aligned", q_len, k_len), lambda: self.align(q_len, k_len))

    def extent(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> Any:
        """How many pairs of the rectangle [q_lo, q_hi) × [k_lo, k_hi) are allowed: ALL, SOME or NONE.

        With ints: an `Extent`, over all examples and heads. With integer tensors that broadcast to some shape: int8
        codes [B|1, H|1, *shape]. ALL and NONE are never wrong; SOME is conservative only where a docstring says so.
        """
        bounds = [torch.as_tensor(x) for x in (q_lo, q_hi, k_lo, k_hi)]
        codes = self.rectangles(*(bounds if any(x.ndim for x in bounds) else [x[None] for x in bounds]))
        if any(x.ndim for x in bounds):
            return codes
        lowest, highest = int(codes.min()), int(codes.max())
        return Extent(lowest) if lowest == highest else Extent.SOME

    def cells(self, q: Tensor, k: Tensor, *, b: int | None = None, h: int | None = None) -> Tensor:
        """The cells of queries `q` [Q'] and keys `k` [K']: bool [B|1, H|1, Q', K'], of one example or head if given."""
        b_index = cells.axis(self.batch, b, q.device)
        h_index = cells.axis(self.heads, h, q.device)
        allowed = self.allows(b_index[:, None, None, None], h_index[:, None, None], q[:, None], k[None, :])
        return torch.broadcast_to(allowed, (b_index.shape[0], h_index.shape[0], q.shape[0], k.shape[0]))

    def to_bool(self, q_len: int, k_len: int | None = None, *, device: torch.device | str | None = None) -> Tensor:
        """The dense mask, bool [B|1, H|1, Q, K], True = may attend. `k_len` defaults to `q_len`."""
        k_len = q_len if k_len is None else k_len
        return self.aligned(q_len, k_len).cells(torch.arange(q_len, device=device), torch.arange(k_len, device=device))

    def to_additive(
        self,
        q_len: int,
        k_len: int | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """The mask to add to the scores, [B|1, H|1, Q, K]: 0 where attention is allowed, -inf elsewhere."""
        allowed = self.to_bool(q_len, k_len, device=device)
        return torch.zeros(allowed.shape, dtype=dtype, device=device).masked_fill_(~allowed, -torch.inf)

    def to_block_mask(
        self, q_len: int, k_len: int | None = None, *, block_size: int = 128, device: torch.device | str = "cpu"
    ) -> BlockMask:
        """FlexAttention's BlockMask, made from the rectangle answers without evaluating the dense mask."""
        from torch.nn.attention.flex_attention import BlockMask

        k_len = q_len if k_len is None else k_len
        mask = self.aligned(q_len, k_len).to(device)
        codes = mask.blocks(q_len, k_len, block_size).to(device)
        # A block that sticks out over the edge must be masked: FlexAttention does not cut full blocks at the end.
        if k_len % block_size:
            codes[..., -1].clamp_(max=Extent.SOME)
        if q_len % block_size:
            codes[..., -1, :].clamp_(max=Extent.SOME)
        partial, full = (codes == Extent.SOME), (codes == Extent.ALL)
        return BlockMask.from_kv_blocks(
            *_count_and_order(partial),
            *_count_and_order(full),
            BLOCK_SIZE=block_size,
            mask_mod=lambda b, h, q, k: mask.allows(b, h, q, k),  # torch tells mask_mods by their four parameters
            seq_lengths=(q_len, k_len),
        )

    def blocks(self, q_len: int, k_len: int, block_q: int, block_k: int | None = None) -> Tensor:
        """Extent codes of the grid of blocks, int8 [B|1, H|1, ⌈Q/block_q⌉, ⌈K/block_k⌉]; blocks at the end are cut."""
        block_k = block_q if block_k is None else block_k
        mask, sizes = self.aligned(q_len, k_len), (q_len, k_len, block_q, block_k)
        return mask.remember(("blocks", *sizes), lambda: mask.grid(*sizes)).clone()

    def used_keys(self, q_len: int, k_len: int) -> Tensor | None:
        """The keys that at least one query may attend to, bool [B|1, H|1, K]; None if that is all of them. Exact.

        A key that nobody may attend to may hold NaN or inf, and must not reach the output.
        """
        mask = self.aligned(q_len, k_len)

        def find() -> Tensor | None:
            used = mask.seen_keys(q_len, k_len)
            return None if bool(used.all()) else used

        return mask.remember(("used", q_len, k_len), find)

    def causal_rows(self, q_len: int, k_len: int) -> Tensor:
        """Which queries, all but the last, may attend to no key after their own position: bool [B|1, H|1, Q - 1]."""
        mask = self.aligned(q_len, k_len)

        def look() -> Tensor:
            # The last query has no later key: it stands at the last one.
            q = torch.arange(max(0, q_len - 1))
            later = (q + k_len - q_len + 1).clamp(min=0)
            return mask.rectangles(q, q + 1, later, torch.full_like(q, k_len)) == Extent.NONE

        return mask.remember(("causal", q_len, k_len), look)

    def to(self, device: torch.device | str) -> Mask:
        """This mask with its tensors on `device`."""
        moved = {
            f.name: value.to(device)
            for f in dataclasses.fields(self)
            if isinstance(value := getattr(self, f.name), (Tensor, Mask))
        }
        return dataclasses.replace(self, **moved) if moved else self

    @property
    def device(self) -> torch.device | None:
        """Where the mask's tensors are; None if it has none."""
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if isinstance(value, (Tensor, Mask)) and value.device is not None:
                return value.device
        return None

    def draw(self, q_len: int, k_len: int | None = None, *, b: int = 0, h: int = 0) -> str:
        """The matrix as text, one line a query: ■ may attend, · may not."""
        allowed = self.to_bool(q_len, k_len)
        rows = allowed[b if self.batch else 0, h if self.heads else 0].tolist()
        return "\n".join(" ".join("■" if cell else "·" for cell in row) for row in rows)

    def remember(self, key: tuple[Any, ...], make: Callable[[], T]) -> T:
        """`make()`, kept for the next call with this key: layers and steps that share a mask share the work."""
        if torch.compiler.is_compiling():
            return make()
        memo: dict[tuple[Any, ...], Any] = self.__dict__.setdefault("_memo", {})
        if key in memo:
            return memo[key]
        value = make()
        if len(memo) >= 8:  # a decoding loop asks for new lengths at every step
            memo.pop(next(iter(memo)), None)
        memo[key] = value
        return value

    def __getstate__(self) -> dict[str, Any]:
        # What was remembered is not pickled or copied: it can be large, and can be made again.
        return {name: value for name, value in self.__dict__.items() if name != "_memo"}

    def __and__(self, other: Mask) -> Mask:
        return And(_parts(And, self, other)) if isinstance(other, Mask) else NotImplemented

    def __or__(self, other: Mask) -> Mask:
        return Or(_parts(Or, self, other)) if isinstance(other, Mask) else NotImplemented

    def __invert__(self) -> Mask:
        return self.part if isinstance(self, Not) else Not(self)

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(_same(getattr(self, f.name), getattr(other, f.name)) for f in dataclasses.fields(self))

    def __hash__(self) -> int:
        values = (getattr(self, f.name) for f in dataclasses.fields(self))
        return hash((type(self), *(tuple(v.shape) if isinstance(v, Tensor) else v for v in values)))

    def __rich__(self) -> Any:
        from rich.panel import Panel
        from rich.text import Text

        q_len, k_len = self.natural_lengths() or (8, 8)
        if max(q_len, k_len) > 32:
            return Text(repr(self))
        return Panel(Text(self.draw(q_len, k_len)), title=repr(self), expand=False)

    def natural_lengths(self) -> tuple[int, int] | None:
        """The (Q, K) that this mask is made for, if it is made for any."""
        return None


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class _Parts(Mask):
    """Several masks as one."""

    parts: tuple[Mask, ...]

    @property
    def batch(self) -> int | None:
        return _one_size("examples", [part.batch for part in self.parts])

    @property
    def heads(self) -> int | None:
        return _one_size("heads", [part.heads for part in self.parts])

    @property
    def key_only(self) -> bool:
        return all(part.key_only for part in self.parts)

    @property
    def cellwise(self) -> bool:
        return any(part.cellwise for part in self.parts)

    def align(self, q_len: int, k_len: int) -> Mask:
        return dataclasses.replace(self, parts=tuple(part.aligned(q_len, k_len) for part in self.parts))

    def natural_lengths(self) -> tuple[int, int] | None:
        return next((lengths for part in self.parts if (lengths := part.natural_lengths())), None)

    def to(self, device: torch.device | str) -> Mask:
        return dataclasses.replace(self, parts=tuple(part.to(device) for part in self.parts))

    @property
    def device(self) -> torch.device | None:
        return next((part.device for part in self.parts if part.device is not None), None)


class And(_Parts):
    """The pairs that every part allows. Its rectangles may say SOME for NONE where two parts both say SOME."""

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        allowed = self.parts[0].allows(b, h, q, k)
        for part in self.parts[1:]:
            allowed = allowed & part.allows(b, h, q, k)
        return allowed

    def rectangles(
        self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor, wanted: Tensor | None = None
    ) -> Tensor:
        return _combine(self.parts, torch.minimum, Extent.NONE, (q_lo, q_hi, k_lo, k_hi), wanted)

    def band(self) -> tuple[float, float] | None:
        bands = [part.band() for part in self.parts]
        if any(band is None for band in bands):
            return None
        return max(band[0] for band in bands if band), min(band[1] for band in bands if band)

    def __repr__(self) -> str:
        return " & ".join(f"({part!r})" if isinstance(part, Or) else repr(part) for part in self.parts)


class Or(_Parts):
    """The pairs that some part allows. Its rectangles may say SOME for ALL only where two parts both say SOME."""

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        allowed = self.parts[0].allows(b, h, q, k)
        for part in self.parts[1:]:
            allowed = allowed | part.allows(b, h, q, k)
        return allowed

    def rectangles(
        self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor, wanted: Tensor | None = None
    ) -> Tensor:
        return _combine(self.parts, torch.maximum, Extent.ALL, (q_lo, q_hi, k_lo, k_hi), wanted)

    def __repr__(self) -> str:
        return " | ".join(repr(part) for part in self.parts)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Not(Mask):
    """The pairs that the mask does not allow."""

    part: Mask

    @property
    def batch(self) -> int | None:
        return self.part.batch

    @property
    def heads(self) -> int | None:
        return self.part.heads

    @property
    def key_only(self) -> bool:
        return self.part.key_only

    @property
    def cellwise(self) -> bool:
        return self.part.cellwise

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        return self.part.allows(b, h, q, k) ^ True  # `~` of a Python bool would be an int

    def rectangles(
        self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor, wanted: Tensor | None = None
    ) -> Tensor:
        return 2 - self.part.rectangles(q_lo, q_hi, k_lo, k_hi, wanted)

    def align(self, q_len: int, k_len: int) -> Mask:
        return Not(self.part.aligned(q_len, k_len))

    def natural_lengths(self) -> tuple[int, int] | None:
        return self.part.natural_lengths()

    def __repr__(self) -> str:
        return f"~({self.part!r})" if isinstance(self.part, _Parts) else f"~{self.part!r}"


def _parts(kind: type[_Parts], *masks: Mask) -> tuple[Mask, ...]:
    flat: list[Mask] = []
    for mask in masks:
        flat.extend(mask.parts if isinstance(mask, kind) else [mask])
    return tuple(flat)


def _combine(
    parts: tuple[Mask, ...],
    join: Callable[[Tensor, Tensor], Tensor],
    settled: Extent,
    bounds: tuple[Tensor, Tensor, Tensor, Tensor],
    wanted: Tensor | None,
) -> Tensor:
    """Join the parts' answers; a mask that must evaluate cells is asked last, and only where nothing is settled yet."""
    cheap_first = sorted(parts, key=lambda part: part.cellwise)
    codes = cheap_first[0].rectangles(*bounds, wanted)
    for part in cheap_first[1:]:
        open_ = (codes != settled).flatten(0, 1).any(0)
        wanted = open_ if wanted is None else open_ & wanted
        codes = join(codes, part.rectangles(*bounds, wanted))
    return codes


def _count_and_order(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Per row of blocks: how many are set, and the columns with the set ones first, as FlexAttention wants them."""
    order = torch.argsort(blocks.to(torch.int8), dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), order.to(torch.int32)


def _one_size(what: str, sizes: list[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    if any(size != known[0] for size in known):
        received = sorted(set(known))
        raise MaskError(f"masks made for different numbers of {what} cannot be combined: received {received}")
    return known[0] if known else None


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and a.device == b.device and torch.equal(a, b)
    return bool(a == b)
