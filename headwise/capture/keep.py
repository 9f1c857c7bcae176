"""What a watch keeps of a call, where, and how much of it: dtype, offloading, the bound on bytes."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from typing import Literal

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.errors import ArgumentError, DtypeError, RecordError
from headwise.shapes import FLOATS

Offload = Literal["cpu", "disk"]


def half_of_memory() -> int | None:
    """Half of this machine's memory, in bytes; None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, ValueError, OSError):
        return None


class TooMuch(RecordError):  # noqa: N818 (a refusal, not a failure)
    """The records passed the bound on their bytes."""


class Keeper:
    """Keeps tensors as a watch was asked to, and counts their bytes."""

    def __init__(self, dtype: torch.dtype | None, offload: Offload | None, max_bytes: int | None) -> None:
        if dtype is not None and dtype not in FLOATS:
            raise DtypeError(f"dtype must be float16, bfloat16, float32, float64 or None. Received: {dtype}")
        if offload not in (None, "cpu", "disk"):
            raise ArgumentError(f'offload must be "cpu", "disk" or None. Received: {offload!r}')
        if max_bytes is not None and max_bytes <= 0:
            raise ArgumentError(f"max_bytes must be positive, or None for no bound. Received: {max_bytes}")
        self._dtype, self._offload, self._max_bytes = dtype, offload, max_bytes
        self._storages: dict[int, int] = {}
        self._others = 0  # bytes of what grows

    @property
    def nbytes(self) -> int:
        """The bytes kept so far; a storage that several tensors share counts once."""
        return sum(self._storages.values()) + self._others

    def call(self, call: AttentionCall, *, values: bool) -> AttentionCall:
        """The call as it is kept."""
        q, k = self.tensor(call.q), self.tensor(call.k)
        v = self.tensor(call.v) if values else call.v.detach()[..., :0]
        bias = None if call.bias is None else self.tensor(call.bias, keep_dtype=True)
        sinks = None if call.sinks is None else call.sinks.detach().clone()
        mask = call.mask
        if q.device != call.q.device:  # offloaded
            bias, sinks = (None if x is None else x.to(q.device) for x in (bias, sinks))
            mask = None if mask is None else mask.to(q.device)
        return dataclasses.replace(call, q=q, k=k, v=v, bias=bias, sinks=sinks, mask=mask)

    def tensor(self, x: Tensor, *, keep_dtype: bool = False) -> Tensor:
        """One tensor as it is kept: the model's own where that is safe, a copy where it may be changed unnoticed."""
        kept = x.detach()
        if self._dtype is not None and not keep_dtype:
            kept = kept.to(self._dtype)
        if self._offload == "cpu":
            kept = kept.to("cpu")
        if self._offload == "disk":
            return _on_disk(kept)
        # An inference tensor does not count its changes; a parameter is changed by the next optimiser step.
        if kept.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() and (
            x.is_inference() or (x.is_leaf and x.requires_grad and not x._is_view())
        ):
            kept = _owned(kept)
        self.count(kept)
        return kept

    def convert(self, x: Tensor) -> Tensor:
        """In the dtype and on the device that things are kept in."""
        return x.detach().to(device="cpu" if self._offload else x.device, dtype=self._dtype or x.dtype)

    def count(self, x: Tensor) -> None:
        """Add a tensor's storage to what is kept. Raises RecordError past the bound."""
        storage = x.untyped_storage()
        self._storages[storage.data_ptr()] = storage.nbytes()
        self._check()

    def forget(self, call: AttentionCall) -> None:
        """A call that was kept is dropped: its bytes do not count any more."""
        for x in (call.q, call.k, call.v, call.bias):
            if x is not None:
                self._storages.pop(x.untyped_storage().data_ptr(), None)

    def count_growth(self, nbytes: int) -> None:
        """Add the bytes that something has grown by."""
        self._others += nbytes
        self._check()

    def _check(self) -> None:
        if self._max_bytes is not None and self.nbytes > self._max_bytes:
            raise TooMuch(
                f"the records passed the bound of {_size(self._max_bytes)} (max_bytes). Watch fewer layers (only=), "
                'fewer passes (every=), in a smaller dtype (dtype=torch.bfloat16), offload="cpu" or "disk", or raise '
                "max_bytes"
            )


def _owned(x: Tensor) -> Tensor:
    with torch.inference_mode(False):
        return torch.empty_like(x).copy_(x) if x.is_inference() else x.clone()


def _size(count: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"


def _on_disk(x: Tensor) -> Tensor:
    """A tensor in a file without a name, mapped into memory: it is gone when the tensor is."""
    if not x.numel():
        return x.to("cpu")
    handle, name = tempfile.mkstemp(prefix="headwise-")
    try:
        with torch.inference_mode(False):
            mapped = torch.from_file(name, shared=True, size=x.numel(), dtype=x.dtype).view(x.shape)
            return mapped.copy_(x)
    finally:
        # The mapping keeps the bytes; the name is not needed any more, so nothing can be left behind.
        os.close(handle)
        os.unlink(name)
