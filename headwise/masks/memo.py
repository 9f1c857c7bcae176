"""Remembers results computed from a mask, for layers and steps that share it, and detects changes of its tensors."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from headwise.tracing import is_plain

MISSING = object()

# How many of the last used results are kept for each purpose: enough for training, evaluation, and their last batches.
KEPT = 32

LARGE = 2**16  # from so many cells on, a bool tensor is kept, and compared, at one bit per cell


class Memo:
    """The last used results computed from a mask. Those for one purpose (`key[0]`) never push out those for another."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, dict[Hashable, Any]] = {}
        self._lock = threading.Lock()

    def find(self, key: tuple[Hashable, ...]) -> Any:
        """Return the result that was stored for this key, or MISSING."""
        with self._lock:
            answers = self._answers.get(key[0], {})
            if key not in answers:
                return MISSING
            answers[key] = value = answers.pop(key)  # now it is the last used
            return value

    def keep(self, key: tuple[Hashable, ...], value: Any) -> None:
        """Store a result; if more than `KEPT` have its `key[0]` (its purpose), drop the one unused for the longest."""
        with self._lock:
            answers = self._answers.setdefault(key[0], {})
            answers[key] = value
            if len(answers) > KEPT:
                del answers[next(iter(answers))]


def read_contents(x: Tensor) -> Hashable:
    """Return a value that changes if the contents of a tensor change, however they are written.

    On the CPU the value is made from all contents, because torch does not count changes that are made by NumPy, through
    `.data` or to inference tensors. It takes 1 µs for a few KB, and 1 ms for the 16 MB of a bool matrix [4096, 4096],
    of which one bit per cell is kept. Reading a tensor of another device would wait for that device, so there the value
    is torch's count of changes, which misses changes through `.data` and by a user's own kernels. An inference tensor
    there has no count: it is read if it is small; the value of a large one is never equal to an earlier value.
    """
    if type(x) not in (Tensor, Parameter):
        return object() if x.is_inference() else x._version
    if x.is_cpu:
        once = undo_expand(x)
        once = once.detach() if once.requires_grad else once
        values = (once.view(torch.int16) if once.dtype == torch.bfloat16 else once).numpy()
        is_large = values.size >= LARGE and values.dtype == np.bool_
        return x.shape, (np.packbits(values, axis=-1) if is_large else values).tobytes()
    if not x.is_inference():
        return x.data_ptr(), x._version
    return object() if x.is_meta or x.numel() > LARGE else read_contents(x.cpu())


def undo_expand(x: Tensor) -> Tensor:
    """Return a tensor without the repetitions that `expand` made."""
    if 0 not in x.stride():
        return x
    return x[tuple([slice(0, 1) if step == 0 else slice(None) for step in x.stride()])]


def converted(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert `x` to the dtype of a mask's table, and note `x` on the result (`find_source`).

    So an owned copy of the mask, when it is made, copies what `x` contains then.
    """
    found = x.to(dtype)
    if found is not x and is_plain():
        found._headwise_source = x  # type: ignore[attr-defined]
    return found


def find_source(table: Tensor) -> Tensor:
    """Return the tensor from which a table was `converted`, or the table itself."""
    return getattr(table, "_headwise_source", table)


def copy_tensor(x: Tensor) -> Tensor:
    """Copy a tensor such that later calls can use the copy, whether they run in inference mode or not."""
    x = find_source(x).to(x.dtype)
    with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext():
        once = undo_expand(x)
        return x.clone() if once is x else once.clone().expand(x.shape)
