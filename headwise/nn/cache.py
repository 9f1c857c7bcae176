"""The cache of an attention module: it holds the keys and values (or latents) of earlier tokens between calls.

A module appends the tensors of the new tokens and gets back all tensors that the new tokens may attend to. The tensors
are stored in `headwise.nn.cache_storage`. This file defines their meaning: lengths, positions, real tokens, owner.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from headwise.errors import ArgumentError, CacheError, DtypeError
from headwise.nn.cache_checks import AGAIN, check_alike, check_tensors, left_padded
from headwise.nn.cache_storage import Make, Memory, Slots
from headwise.parallel import context as parallel
from headwise.quantized import Int8


class Cache:
    """The cached tokens of one attention module. For a stack of modules, `child` makes one cache for each module.

    Without options the cache grows: a step copies only its own tokens. If autograd follows a tensor, appending makes a
    new tensor from the old and the new tokens, so gradients reach the tokens of every step.

    It holds any number of tensors [B, ·, S, ·], of any sizes at the dots. Rows of different lengths are padded on the
    left: every row is [padding, tokens], with its last token in the last slot. A slot is an index along S: slots count
    padding, while positions count only real tokens. In the cache of a stack, to which nothing itself is appended,
    `length`, `real` and `next_positions` are those of its longest child.

    Args:
        capacity: allocate this number of slots at once, at the first append. One token more raises CacheError.
        window: keep only the last `window` slots, in bounded memory. A token that is appended alone then sees
            the `window` tokens before it and itself, as by `masks.window(window, 0)`.
        dtype: None = the dtype of the appended tensors. torch.int8: the tensors are rounded, with one scale per token
            and head (`headwise.Int8`), in a quarter of the memory of float32. Projections that the method `memory`
            stores are not rounded. Rounded tensors get no gradient.
    """

    def __init__(
        self, *, capacity: int | None = None, window: int | None = None, dtype: torch.dtype | None = None
    ) -> None:
        for name, option in (("capacity", capacity), ("window", window)):
            if option is not None and (not isinstance(option, int) or isinstance(option, bool) or option < 1):
                raise ArgumentError(f"{name}: expected an int of at least 1, or None. Received: {name}={option!r}")
        if capacity is not None and window is not None:
            raise ArgumentError(
                f"capacity, window: expected one of the two. Received: capacity={capacity}, window={window}. "
                "A window already limits the memory"
            )
        if dtype not in (None, torch.int8):
            raise ArgumentError(f"dtype: expected torch.int8, or None for the dtype of the tokens. Received: {dtype}")
        self.capacity, self.window, self.dtype = capacity, window, dtype
        self._children: dict[str, Cache] = {}
        self._forget()

    def _forget(self) -> None:
        self._owner: weakref.ref[nn.Module] | None = None
        self._slots: Slots | None = None
        self._memory: Memory | None = None
        self._length = 0
        self._padded = False  # the last buffer of the slots holds their positions, int32 [B, 1, n, 1], -1 = padding
        self._seen: tuple[int, Tensor | None] = (0, None)  # slots returned by the last append: number, positions

    # Contents

    @property
    def length(self) -> int:
        """The number of slots appended so far to each row, padding included. The next token gets this slot."""
        return self._speaker._length

    @property
    def size(self) -> int:
        """The number of slots held now: equal to `length`, or less if a window has dropped some."""
        slots = self._speaker._slots
        return 0 if slots is None else slots.size

    @property
    def bytes(self) -> int:
        """The bytes held, including all children: `size` × bytes per token, plus the projections of a memory."""
        slots = sum(x.nbytes for part in self._parts() for x in part._tensors())
        return slots + sum(part._memory.bytes for part in self._parts() if part._memory is not None)

    @property
    def allocated(self) -> int:
        """The bytes of all buffers, including all children, free slots for more tokens and positions of padded rows."""
        slots = sum(part._slots.allocated for part in self._parts() if part._slots is not None)
        return slots + sum(part._memory.bytes for part in self._parts() if part._memory is not None)

    @property
    def real(self) -> Tensor | None:
        """Which held slots are real tokens: bool [B, size], True = a real token; None = all are real."""
        positions = self._speaker._held_positions()
        return None if positions is None else positions >= 0

    @property
    def key_real(self) -> Tensor | None:
        """Which of the n ≥ `size` slots that the last `append` returned are real tokens: bool [B, n]; None = all."""
        positions = self._speaker._seen[1]
        return None if positions is None else positions >= 0

    def next_positions(self, count: int, real: Tensor | None = None, *, device: torch.device | str) -> Tensor:
        """Return the positions that the next `count` tokens will have: int64 [count]; [B, count] if a row has padding.

        `real`: bool or integers [B, count], True or 1 = a real token. The position of padding is 0.
        """
        cache = self._speaker
        real = left_padded(real, None if cache._slots is None else cache._slots.batch, count)
        if real is None and not cache._padded:
            return torch.arange(cache._length, cache._length + count, device=device)
        return cache._compute_positions(count, real, device).clamp(min=0)

    def key_positions(self, *, device: torch.device | str) -> Tensor:
        """Return the positions of the n slots that the last `append` returned: int64 [n]; [B, n] if a row has padding.

        The position of padding is 0. After `reorder` or `crop` they are the positions of all slots that the cache
        holds.
        """
        cache = self._speaker
        count, positions = cache._seen
        if positions is None:
            return torch.arange(cache._length - count, cache._length, device=device)
        return positions.to(device, torch.int64).clamp(min=0)

    # Changes

    def append(self, *tensors: Tensor, real: Tensor | None = None) -> tuple[Tensor, ...]:
        """Append the new tokens. Returns all tokens that the new tokens may attend to, in the order of positions.

        A growing cache returns all tokens that it holds. A cache with a window returns the held and the new tokens, and
        then keeps the last `window` of them. Later calls do not change the returned tensors.

        Args:
            tensors: each [B, ·, S, ·], with the sizes of the tensors appended before, except for S.
            real: bool or integers [B, S], True or 1 = a real token, False or 0 = padding, which must be on the left of
                each row. The tokens that the row had before move right, so that no padding comes between tokens:
                [padding, old tokens, new tokens]. While torch.compile traces, the values are not checked.

        Returns:
            Each [B, ·, n, ·].

        Raises:
            CacheError: B, a width, a dtype or a device differs from the cache, or the capacity is too small.
            ShapeError, DtypeError, ArgumentError: arguments that cannot be appended at all.
        """
        held = self.append_held(*tensors, real=real)
        return tuple(x.dequantized() if isinstance(x, Int8) else x for x in held)

    def append_held(self, *tensors: Tensor, real: Tensor | None = None) -> tuple[Tensor | Int8, ...]:
        """Like `append`, but returns the tensors in the form in which they are held: `Int8` in an int8 cache."""
        batch, count = check_tensors(tensors)
        real = left_padded(real, batch, count)
        dtypes = [x.dtype for x in tensors]
        if self.dtype is not None:
            tensors = tuple(part for x in map(Int8.of, tensors) for part in (x.values, x.scale[..., None]))
        if self._slots is not None:
            check_alike(self._tensors(), tensors)
        if self.capacity is not None and self._length + count > self.capacity:
            raise CacheError(
                f"append: not enough free slots, this cache holds {self._length} of capacity={self.capacity}. "
                f"Received: {count} more. Make a Cache with more capacity, or crop() or reset() this one"
            )
        slots = self._slots = self._slots or Slots(tensors, self.capacity, self.window)
        device = tensors[0].device
        if real is not None and not self._padded:
            held = torch.arange(self._length - slots.size, self._length, dtype=torch.int32, device=device)
            slots.append_tensor(held[None, None, :, None].expand(batch, 1, -1, 1))
            self._padded = True
        pads = None
        if self._padded:
            positions = self._compute_positions(count, real, device)
            tensors = (*tensors, positions.to(torch.int32)[:, None, :, None])
            pads = None if real is None else (~real).sum(1).to(device)
        every = slots.append(tensors, pads)
        self._length += count
        self._seen = (every[0].shape[2], every[-1][:, 0, :, 0] if self._padded else None)
        every = every[:-1] if self._padded else every
        if self.dtype is None:
            return every
        pairs = zip(every[::2], every[1::2], dtypes, strict=True)
        return tuple(Int8(values, scale[..., 0], dtype) for values, scale, dtype in pairs)

    def reorder(self, order: Tensor, *, memories: bool = True) -> None:
        """Replace row i by the old row order[i], also in the projections of a memory, as beam search needs it.

        Args:
            order: int64 [B'], where B' may differ from B.
            memories: False = leave the projections of memories as they are, because row i and row order[i] read the
                same memory.
        """
        if not isinstance(order, Tensor) or order.dtype not in (torch.int64, torch.int32) or order.ndim != 1:
            received = f"{order.dtype} {list(order.shape)}" if isinstance(order, Tensor) else type(order).__name__
            raise DtypeError(f"order: expected an int64 tensor [B], a row for each new row. Received: order={received}")
        wanted = [(part, (part._slots, part._memory if memories else None)) for part in self._parts()]
        parts = [(part, held) for part, both in wanted for held in both if held is not None]
        if order.device.type == "cpu" and len(order) and not torch.compiler.is_compiling():  # elsewhere torch raises
            for _, held in parts:
                if not 0 <= int(order.min()) <= int(order.max()) < held.batch:
                    raise CacheError(
                        f"order: expected rows 0 … {held.batch - 1}, this cache holds B = {held.batch}. "
                        f"Received: order={order.tolist()}"
                    )
        for part, held in parts:
            held.reorder(order)
            part._see_held()

    def crop(self, length: int) -> None:
        """Forget all but the first `length` slots, of all children too. Padding counts as slots.

        Caches that are not longer, and the projections of memories, do not change.

        Raises:
            CacheError: the window has dropped tokens that the next token would have to see; the cache is unchanged.
        """
        if not isinstance(length, int) or length < 0:
            raise ArgumentError(
                f"length: expected the number of tokens to keep, at least 0. Received: length={length!r}"
            )
        cropped = [part for part in self._parts() if part._slots is not None and part._length > length]
        for part in cropped:
            part._check_crop(length)
        for part in cropped:
            assert part._slots is not None
            part._slots.crop(max(part._slots.size - (part._length - length), 0))
            part._length = length
            part._see_held()

    def reset(self) -> None:
        """Forget everything, including the owner. The children stay, but are reset too."""
        for part in self._parts():
            part._forget()

    # Owner and children

    def child(self, name: str) -> Cache:
        """Return the cache of the submodule `name`; the first call makes it, with the options of this cache."""
        if name not in self._children:
            self._children[name] = Cache(capacity=self.capacity, window=self.window, dtype=self.dtype)
        return self._children[name]

    def bind(self, owner: nn.Module) -> None:
        """Remember (by a weak reference) the module that owns this cache. CacheError if another module owns it."""
        known = None if self._owner is None else self._owner()
        if self._owner is None:
            self._owner = weakref.ref(owner)
        elif known is not owner:
            whose = "a module that no longer exists" if known is None else f"another module, {type(known).__name__}"
            raise CacheError(
                f"cache: expected a cache of this module, {type(owner).__name__}. "
                f"Received: a cache of {whose}. Each module "
                f"needs its own: cache.child(name) makes one. {AGAIN}"
            )

    def memory(self, key: Tensor, value: Tensor, make: Make) -> tuple[Tensor, ...]:
        """Return the projections of a memory (a second sequence, read at every step), which are computed only once.

        The first call computes and stores them: they are the result of `make(key, value)`. Later calls must pass the
        same key and value: the same objects, or tensors with equal contents, which costs a comparison (while
        torch.compile traces, only shapes are compared). The projections stay in autograd's graph.

        Raises:
            CacheError: another key or value, or a key or value that was changed in place.
        """
        if self._memory is None:
            self._memory = Memory(key, value, make)
        else:
            self._memory.check(key, value)
        return self._memory.projections

    def __deepcopy__(self, memo: dict[int, object]) -> Cache:
        twin = Cache.__new__(Cache)
        twin.__dict__.update(copy.deepcopy(self.__getstate__(), memo))
        twin._owner = self._owner  # a copy of a cache belongs to the same module; a copy of a module has its own cache
        return twin

    def __getstate__(self) -> dict[str, object]:
        """Return the state for pickle: all but the owner. The first module that uses the loaded cache will own it."""
        return {**self.__dict__, "_owner": None}

    def __repr__(self) -> str:
        size, unit = float(self.bytes), "B"
        for larger in ("kB", "MB", "GB"):
            if size < 1000:
                break
            size, unit = size / 1000, larger
        names = ("capacity", "window", "dtype")
        options = "".join(f", {x}={getattr(self, x)}" for x in names if getattr(self, x) is not None)
        number = len(self._children)
        children = f", {number} {'child' if number == 1 else 'children'}" if number else ""
        shown = f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        return f"Cache(length={self.length}, size={self.size}, {shown}{options}{children})"

    @property
    def _speaker(self) -> Cache:
        """The cache whose length and positions this cache reports: itself, or its longest child if it has no tokens."""
        if self._slots is not None or not self._children:
            return self
        return max((child._speaker for child in self._children.values()), key=lambda child: child._length)

    def _parts(self) -> Iterator[Cache]:
        yield self
        for child in self._children.values():
            yield from child._parts()

    def _tensors(self) -> tuple[Tensor, ...]:
        """Return the held slots of the appended tensors, each [B, ·, size, ·], without the buffer of positions."""
        held = () if self._slots is None else self._slots.held()
        return held[:-1] if self._padded else held

    def _held_positions(self) -> Tensor | None:
        return self._slots.held()[-1][:, 0, :, 0] if self._slots is not None and self._padded else None

    def _see_held(self) -> None:
        self._seen = (0 if self._slots is None else self._slots.size, self._held_positions())

    def _compute_positions(self, count: int, real: Tensor | None, device: torch.device | str) -> Tensor:
        """Compute the positions of the next tokens, int64 [B, count], -1 = padding. Rows end with their last token."""
        held = self._held_positions()
        start: Tensor | int = self._length
        if held is not None and held.shape[1]:
            start = held[:, -1:].to(device, torch.int64) + 1
        elif held is not None:
            start = torch.zeros(held.shape[0], 1, dtype=torch.int64, device=device)
        if real is None:
            return start + torch.arange(count, device=device)
        real = real.to(device)
        return torch.where(real, start + real.cumsum(1) - 1, -1)

    def _check_crop(self, length: int) -> None:
        assert self._slots is not None
        first = self._length - self._slots.size
        if self.window is not None and length and max(length - self.window, 0) < first:
            raise CacheError(
                f"crop({length}): the next token would see the {self.window} before it, and this cache with window = "
                f"{self.window} has dropped all before {first}. Use a Cache without a window, or reset() this one"
            )


def bind(cache: Cache | None, owner: nn.Module) -> None:
    """Call `cache.bind(owner)` if `cache` is not None.

    Raises:
        DtypeError: `cache` is not a Cache.
        ArgumentError: inside `context_parallel`.
    """
    if cache is None:
        return
    if not isinstance(cache, Cache):
        raise DtypeError(f"cache: expected a headwise.nn.Cache or None. Received: cache={type(cache).__name__}")
    if parallel.current() is not None:  # the cache would count the rows of this process from 0
        raise ArgumentError(
            "context_parallel: expected cache=None. Received: a cache. Compute steps on a cache outside"
        )
    cache.bind(owner)
