"""Storage of a cache: buffers with room for more tokens, and the projections of a memory (a second sequence).

Returned tensors are views of the buffers, and nothing ever overwrites them: later tokens are written behind them, and
any change that would move or replace them (a full buffer, another order of beams, a shift, other tokens after a crop)
uses new buffers. So the record of an earlier step stays correct, although the tensors of that step are not copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from headwise.errors import CacheError

Make = Callable[[Tensor, Tensor], tuple[Tensor, ...]]

SPARE = 32  # the minimum of spare slots in a new buffer of a cache without a capacity


class Slots:
    """Several tensors [B, ·, n, ·] that grow along n together.

    The buffers are [B, ·, room, ·]; the slots from `start` to before `stop` are held. The returned views are made by
    `.data`: then torch counts in-place changes of each view separately, and writing later slots, which lie outside of
    the view, does not count as a change of the view.
    """

    def __init__(self, tensors: Sequence[Tensor], capacity: int | None, window: int | None) -> None:
        """Make an empty storage for tensors of these sizes and dtypes."""
        self.capacity, self.window = capacity, window
        self.buffers = tuple(x.new_empty(*x.shape[:2], 0, x.shape[3]) for x in tensors)
        self.start = self.stop = 0
        self._writable = 0  # slots from `stop` up to here may be written; they were never returned

    @property
    def size(self) -> int:
        """The number of slots held."""
        return self.stop - self.start

    @property
    def batch(self) -> int:
        """The batch size B."""
        return self.buffers[0].shape[0]

    @property
    def allocated(self) -> int:
        """The number of bytes of the buffers."""
        return sum(x.untyped_storage().nbytes() for x in self.buffers)

    def held(self) -> tuple[Tensor, ...]:
        """Return the held slots of each tensor, [B, ·, size, ·]."""
        if self._is_tracked(()):
            return tuple(x.narrow(2, self.start, self.size) for x in self.buffers)
        return tuple(x.data.narrow(2, self.start, self.size) for x in self.buffers)

    def append(self, new: Sequence[Tensor], pads: Tensor | None = None) -> tuple[Tensor, ...]:
        """Append tensors `new` [B, ·, N, ·], and return the old and the new slots joined.

        With a window, the storage then drops its first slots.

        pads: [B], the number of padding slots at the left of each new row. They are moved to the left of the old slots.
        """
        count = new[0].shape[2]
        total = self.size + count
        if pads is not None and self.size:
            every = self._replace(_shifted(self._joined(new), self.size, pads))
        elif self._is_tracked(new):
            every = self._replace(self._joined(new))
        elif self.stop + count <= self._writable and self._may_write():
            self._write(new)
            every = self.held()
        elif total > self._room(total):  # more slots than a window's buffer has: return all, and hold only the last
            every = self._replace(self._joined(new))
        else:
            self._move(self.held(), self._room(total))
            self._write(new)
            every = self.held()
        if self.window is not None:
            self.start = max(self.start, self.stop - self.window)
        return every

    def append_tensor(self, x: Tensor) -> None:
        """Hold one more tensor, [B, ·, size, ·], which grows together with the others from now on."""
        buffer = x.new_empty(*x.shape[:2], self.buffers[0].shape[2], x.shape[3])
        buffer.narrow(2, self.start, self.size).copy_(x)
        self.buffers = (*self.buffers, buffer)

    def reorder(self, order: Tensor) -> None:
        """Replace row i by the old row order[i]."""
        held = self.held()
        if self._is_tracked(()) or torch.compiler.is_compiling():  # neither supports out=, which saves a copy
            self._replace([x.index_select(0, order.to(x.device)) for x in held])
            return
        room = self._room(self.size)
        buffers = tuple(x.new_empty(len(order), x.shape[1], room, x.shape[3]) for x in held)
        for buffer, x in zip(buffers, held, strict=True):
            torch.index_select(x, 0, order.to(x.device), out=buffer.narrow(2, 0, self.size))
        self._hold(buffers, self.size)

    def crop(self, size: int) -> None:
        """Hold only the first `size` of the held slots. Callers may still read the others: nothing overwrites them."""
        if size < self.size:
            self.stop = self._writable = self.start + size

    def __getstate__(self) -> dict[str, object]:
        """Return the state for copy and pickle: the held slots, without free slots and without their autograd graph."""
        buffers = tuple(x.detach().clone() for x in self.held())
        place = {"start": 0, "stop": self.size, "_writable": self.size}
        return {**self.__dict__, "buffers": buffers, **place}

    def _is_tracked(self, new: Sequence[Tensor]) -> bool:
        """Return whether autograd follows these tensors: then appending makes new tensors and writes none in place."""
        return torch.is_grad_enabled() and any(x.requires_grad for x in (*self.buffers, *new))

    def _may_write(self) -> bool:
        """Return whether torch allows writes to the buffers: not outside of the inference mode that made them."""
        if torch.compiler.is_compiling() or torch.is_inference_mode_enabled():  # traced code cannot ask
            return True
        return not any(x.is_inference() for x in self.buffers)

    def _room(self, total: int) -> int:
        """Return the number of slots of a new buffer for `total` tokens, with free slots for more tokens.

        There are so many that each token is copied O(1) times on average, because full buffers are rare.
        """
        if self.capacity is not None:
            return self.capacity
        if self.window is not None:
            return self.window + max(self.window // 4, SPARE)
        return total + total // 2 + SPARE

    def _joined(self, new: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat((old, x), 2) for old, x in zip(self.held(), new, strict=True)]

    def _replace(self, every: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Hold the tensors `every` [B, ·, n, ·] instead of the old tensors, and return them."""
        total = every[0].shape[2]
        if self._is_tracked(every):
            self._hold(tuple(every), total)
            return tuple(every)
        kept = total if self.window is None else min(total, self.window)
        self._move([x.narrow(2, total - kept, kept) for x in every], self._room(kept))
        return tuple(every)

    def _move(self, held: Sequence[Tensor], room: int) -> None:
        """Copy the tensors `held` into new buffers with `room` slots, and hold these."""
        size = held[0].shape[2]
        buffers = tuple(x.new_empty(*x.shape[:2], room, x.shape[3]) for x in held)
        for buffer, x in zip(buffers, held, strict=True):
            buffer.narrow(2, 0, size).copy_(x)
        self._hold(buffers, size)

    def _hold(self, buffers: tuple[Tensor, ...], size: int) -> None:
        self.buffers = buffers
        self.start, self.stop, self._writable = 0, size, buffers[0].shape[2]

    def _write(self, new: Sequence[Tensor]) -> None:
        count = new[0].shape[2]
        for buffer, x in zip(self.buffers, new, strict=True):
            buffer.narrow(2, self.stop, count).copy_(x)
        self.stop += count


class Memory:
    """The projections of a memory (a second sequence, read at every step), and the key and value they come from."""

    def __init__(self, key: Tensor, value: Tensor, make: Make) -> None:
        self.projections = make(key, value)
        self._sources = [_Source(key), _Source(value)]

    @property
    def batch(self) -> int:
        """The batch size B."""
        return self.projections[0].shape[0]

    @property
    def bytes(self) -> int:
        """The number of bytes of the projections."""
        return sum(x.nbytes for x in self.projections)

    def check(self, key: Tensor, value: Tensor) -> None:
        """Raise CacheError unless the projections were made from this key and value."""
        for name, source, x in zip(("key", "value"), self._sources, (key, value), strict=True):
            source.check(name, x)

    def reorder(self, order: Tensor) -> None:
        """Replace row i by the old row order[i]."""
        self.projections = tuple(x.index_select(0, order.to(x.device)) for x in self.projections)
        self._sources = [source.reordered(order) for source in self._sources]

    def __getstate__(self) -> dict[str, object]:
        """Return the state for copy and pickle: the projections without their autograd graph."""
        return {**self.__dict__, "projections": tuple(x.detach() for x in self.projections)}


class _Source:
    """The key or value of a memory: the caller's tensor, and its count of in-place changes when it was read."""

    def __init__(self, x: Tensor) -> None:
        self.tensor, self.version = x, _version(x)

    def check(self, name: str, x: Tensor) -> None:
        reset = "Call reset() on the cache to read another memory"
        if self.version is not None and _version(self.tensor) != self.version:
            raise CacheError(f"{name}: the memory was changed in place after this cache had read it. {reset}")
        if x is self.tensor:
            return
        if x.shape != self.tensor.shape:
            raise CacheError(
                f"{name}: expected the memory {list(self.tensor.shape)} that this cache has read. "
                f"Received: {name}={list(x.shape)}. {reset}"
            )
        if torch.compiler.is_compiling():
            return  # comparing would break the graph
        if x.dtype != self.tensor.dtype or x.device != self.tensor.device or not torch.equal(x, self.tensor):
            raise CacheError(
                f"{name}: expected the memory that this cache has read, with the same values. Received: "
                f"{name}={list(x.shape)} of {x.dtype} on {x.device}. {reset}"
            )
        self.tensor, self.version = x, _version(x)  # the next step will bring the same object

    def reordered(self, order: Tensor) -> _Source:
        return _Source(self.tensor.detach().index_select(0, order.to(self.tensor.device)))

    def __getstate__(self) -> dict[str, object]:
        return {"tensor": self.tensor.detach(), "version": None}


def _shifted(every: Sequence[Tensor], held: int, pads: Tensor) -> list[Tensor]:
    """Roll the first held + pads[b] slots of row b right by pads[b], so that the padding comes to the left."""
    total = every[0].shape[2]
    slot = torch.arange(total, device=pads.device)
    moved = held + pads[:, None]
    source = torch.where(slot < moved, (slot - pads[:, None]) % moved, slot)
    return [torch.take_along_dim(x, source[:, None, :, None].to(x.device), 2) for x in every]


def _version(x: Tensor) -> int | None:
    """Return torch's count of in-place changes of x; None if there is none (while compiling, inference tensors)."""
    return None if torch.compiler.is_compiling() or x.is_inference() else x._version
