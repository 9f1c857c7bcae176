"""How `watch` keeps attention calls: in which dtype, on which device, and how many bytes at most."""

from __future__ import annotations

import dataclasses
import functools
import os
import tempfile
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.capture.growing import Empty
from headwise.errors import ArgumentError, DtypeError, RecordError
from headwise.records.names import Choice
from headwise.records.statistics.computed import Names, named
from headwise.shapes import FLOATS

Offload = Literal["cpu", "disk"] | Path | None


@dataclasses.dataclass(frozen=True)
class Keeping:
    """The arguments of `watch` that say which tensors are kept, and in which form."""

    only: Choice | None = None
    values: bool = False
    gradients: bool = False
    offload: Offload = None
    dtype: torch.dtype | None = None
    every: int = 1
    max_bytes: int | Literal["half"] | None = "half"
    statistics: Names = ()
    keep: bool = True

    def __post_init__(self) -> None:
        named(self.statistics)
        if not isinstance(self.keep, bool):
            raise ArgumentError(f"watch: keep must be True or False. Received: keep={self.keep!r}")
        if not self.keep and not self.statistics:
            raise ArgumentError(
                "watch: keep=False keeps nothing but the statistics that are asked for. Received: statistics=(). Name "
                'some, such as statistics=["entropy", "received"], or leave out keep=False'
            )
        for name in ("values", "gradients", "dtype"):
            if not self.keep and getattr(self, name):
                raise ArgumentError(
                    f"watch: {name} says what to keep of a call, and with keep=False nothing is kept but statistics. "
                    f"Received: {name}={getattr(self, name)!r}, keep=False. Leave out one of them"
                )
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise ArgumentError(f"watch: every must be an int of at least 1. Received: every={self.every!r}")
        if self.dtype is not None and self.dtype not in FLOATS:
            raise DtypeError(
                f"watch: dtype must be float16, bfloat16, float32, float64 or None. Received: dtype={self.dtype}"
            )
        if isinstance(self.offload, Path):
            if not self.offload.is_dir():
                raise ArgumentError(f"watch: offload must be a folder that exists. Received: offload={self.offload}")
        elif self.offload not in (None, "cpu", "disk"):
            raise ArgumentError(
                f'watch: offload must be "cpu", "disk", the Path of a folder or None. Received: offload={self.offload}'
            )
        if self.max_bytes is not None and self.max_bytes != "half" and self.max_bytes <= 0:
            raise ArgumentError(
                f"watch: max_bytes must be positive, or None for no limit. Received: max_bytes={self.max_bytes}"
            )


class TooMuch(RecordError):  # noqa: N818 (a refusal, not a failure)
    """Raised when the records need more bytes than `max_bytes`, or than are free on the disk."""


class Keeper:
    """Keeps tensors in the dtype and on the device of its options, and counts their bytes."""

    def __init__(self, keeping: Keeping) -> None:
        self._dtype, self._offload, self._keep = keeping.dtype, keeping.offload, keeping.keep
        # Makes room on the disk, of a shape and dtype; None = tensors are kept in memory.
        self.empty: Empty | None = None
        if keeping.offload not in (None, "cpu"):
            folder = keeping.offload if isinstance(keeping.offload, Path) else None
            self.empty = functools.partial(_mapped, folder=folder)
        self._max_bytes = _read_half_of_memory() if keeping.max_bytes == "half" else keeping.max_bytes
        # address -> (bytes, tensors): a storage that several tensors share counts once, until the last tensor is gone.
        self._storages: dict[int, tuple[int, int]] = {}
        self._nbytes = 0  # of these storages, and of the buffers of generations

    def call(self, call: AttentionCall, *, values: bool) -> AttentionCall:
        """Return the call as it is kept: its tensors in the right dtype, on the right device, their bytes counted."""
        if not self._keep:
            outline = self.step(call)
            return dataclasses.replace(outline, k=self.tensor(outline.k, keep_dtype=True))
        q, k = self.tensor(call.q), self.tensor(call.k)
        v = self.tensor(call.v) if values else q.new_empty((*call.v.shape[:3], 0))
        bias = None if call.bias is None else self.tensor(call.bias, keep_dtype=True)
        slopes, sinks = (None if x is None else x.detach().to(q.device, copy=True) for x in (call.slopes, call.sinks))
        mask = call.mask
        if mask is not None and q.device != call.q.device:  # offloaded
            mask = mask.to(q.device)
        return dataclasses.replace(call, q=q, k=k, v=v, bias=bias, slopes=slopes, sinks=sinks, mask=mask)

    def step(self, call: AttentionCall) -> AttentionCall:
        """Return a decoding step as it is kept: converted, so that its rows can be joined to the rows of other steps.

        If queries and keys are not kept (keep=False), the result has only their shapes and, for each key, a number
        (`digests`) by which the next step recognises the key.
        """
        if self._keep:
            q, k, v = (self.convert(x) for x in (call.q, call.k, call.v))
            return dataclasses.replace(call, q=q, k=k, v=v)
        device = torch.device("cpu") if self._offload else call.q.device
        q = torch.empty(*call.q.shape[:3], 0, dtype=call.q.dtype, device=device)
        # Training steps are no steps of a generation.
        shape = (len(q), 1, call.shape[3], 0)
        k = torch.empty(shape, device=device) if call.q.requires_grad else digests(call.k)
        k = k.to(device)
        return dataclasses.replace(call, q=q, k=k, v=k[..., :0], mask=None, bias=None, sinks=None)

    def tensor(self, x: Tensor, *, keep_dtype: bool = False) -> Tensor:
        """Return a tensor as it is kept: the model's own, or a copy if a change of it in place would not be noticed."""
        kept = self.convert(x, keep_dtype=keep_dtype)
        if self.empty is not None:
            with torch.inference_mode(False):
                return self.empty(kept.shape, kept.dtype).copy_(kept)
        # An inference tensor has no version counter; the next optimizer step changes a parameter.
        if kept.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() and (
            x.is_inference() or (x.is_leaf and x.requires_grad and not x._is_view())
        ):
            with torch.inference_mode(False):
                kept = kept.clone()
        storage = kept.untyped_storage()
        known, tensors = self._storages.get(storage.data_ptr(), (0, 0))
        self._storages[storage.data_ptr()] = storage.nbytes(), tensors + 1
        self.count(storage.nbytes() - known)
        return kept

    def convert(self, x: Tensor, *, keep_dtype: bool = False) -> Tensor:
        """Return the tensor in the dtype and on the device in which tensors are kept."""
        dtype = x.dtype if keep_dtype or self._dtype is None else self._dtype
        return x.detach().to(device="cpu" if self._offload else x.device, dtype=dtype)

    def forget(self, *tensors: Tensor | None) -> None:
        """Stop counting the bytes of tensors that are no longer kept."""
        for x in tensors:
            if x is None:
                continue
            address = x.untyped_storage().data_ptr()
            nbytes, sharing = self._storages.pop(address, (0, 1))
            if sharing > 1:
                self._storages[address] = nbytes, sharing - 1
            else:
                self._nbytes -= nbytes

    def count(self, nbytes: int) -> None:
        """Add `nbytes` to the number of kept bytes. RecordError if the total is above the limit."""
        self._nbytes += nbytes
        if self._max_bytes is not None and self._nbytes > self._max_bytes:
            raise TooMuch(
                f"watch: the records passed the limit of {self._max_bytes:,} bytes (max_bytes). Watch fewer "
                'layers (only=), fewer passes (every=), in a smaller dtype (dtype=torch.bfloat16), use offload="cpu" '
                'or "disk", keep only statistics (statistics=, keep=False), or increase max_bytes'
            )


def digests(k: Tensor) -> Tensor:
    """Compute a number for each key of k [B, G, K, D], over all heads: int64 [B, 1, K, 1]; equal keys, equal numbers.

    Two keys that differ have the same number with a probability of about 2⁻³².
    """
    words = k.detach().transpose(1, 2).flatten(2).contiguous()
    words = words.view(torch.int16 if k.dtype.itemsize == 2 else torch.int32)
    generator = torch.Generator().manual_seed(words.shape[2])
    odd = torch.randint(-(2**62), 2**62, words.shape[2:], generator=generator, device="cpu")
    odd = (odd * 2 + 1).to(k.device)
    # Sums of integers wrap around, so they do not depend on the order. Some keys at a time: they grow to 8 bytes.
    parts = [(some.long() * odd).sum(-1) for some in words.split(1024, dim=1)]
    return torch.cat(parts, dim=1)[:, None, :, None]


def _read_half_of_memory() -> int | None:
    """Return half of the machine's memory in bytes; None if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, ValueError, OSError):
        return None


def _mapped(shape: torch.Size, dtype: torch.dtype, folder: Path | None) -> Tensor:
    """Make a tensor in a memory-mapped file without a name, which disappears with the tensor or the process."""
    count = shape.numel()
    if not count:
        return torch.empty(shape, dtype=dtype, device="cpu")
    try:
        handle, name = tempfile.mkstemp(prefix="headwise-", dir=folder)
    except OSError as error:
        raise TooMuch(f"watch: cannot write to {folder or tempfile.gettempdir()}: {_why(error)}") from error
    try:
        if hasattr(os, "posix_fallocate"):  # a full disk would end the process later, when the mapped pages are written
            os.posix_fallocate(handle, 0, count * dtype.itemsize)
        with torch.inference_mode(False):
            return torch.from_file(name, shared=True, size=count, dtype=dtype).view(shape)
    except OSError as error:
        raise TooMuch(
            f"watch: no room for {count * dtype.itemsize:,} bytes in {Path(name).parent}: {_why(error)}. Name another "
            "folder in offload=, or keep less (only=, dtype=)"
        ) from error
    finally:
        # The mapping keeps the file's contents. Without a name it cannot be left behind.
        os.close(handle)
        os.unlink(name)


def _why(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
