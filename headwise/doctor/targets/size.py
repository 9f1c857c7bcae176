"""A limit on the size of a module that is being built: memory is counted while its constructor runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from headwise.doctor.limits import GIGABYTE, out_of_memory, size
from headwise.errors import DoctorError
from headwise.language import Sentence

LARGEST = 2 * GIGABYTE  # of tensors: the doctor makes several copies, some of them in float64


class TooLarge(DoctorError):  # noqa: N818
    """A module is about to hold more memory than the doctor can examine."""

    def __init__(self, subject: str, count: float, largest: float, most: str) -> None:
        super().__init__(
            Sentence(
                "{subject} is too large to be examined: it takes at least {least} (the last part: {most}); expected "
                "at most {limit}. Choose smaller sizes: the mistakes are the same"
            ).format(subject=subject, least=size(count), most=most, limit=size(largest))
        )


@contextlib.contextmanager
def size_limit(subject: str, largest: float = LARGEST) -> Iterator[None]:
    """Raise `TooLarge` before tensors of more than `largest` bytes, all together, are made inside the block."""
    try:
        with _Allocations(subject, largest):
            yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, DoctorError) or not out_of_memory(error):
            raise
        raise TooLarge(subject, largest, largest, "a tensor that does not fit into memory") from error


class _Allocations(TorchFunctionMode):
    """Counts the bytes of every tensor that is made from sizes alone, before it is made: on torch's meta device."""

    _MAKERS = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.eye)

    def __init__(self, subject: str, largest: float) -> None:
        super().__init__()
        self._subject, self._largest, self._total = subject, largest, 0.0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self._MAKERS and str(kwargs.get("device")) != "meta":
            planned = torch.empty(0)
            with contextlib.suppress(Exception):  # then it raises by itself
                kept = {name: x for name, x in kwargs.items() if name not in ("generator", "device", "out")}
                planned = func(*args, **kept, device="meta")
            self._total += planned.nbytes
            if self._total > self._largest:
                raise TooLarge(self._subject, self._total, self._largest, f"a tensor {list(planned.shape)}")
        return func(*args, **kwargs)
