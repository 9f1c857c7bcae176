"""What a mask has worked out, for layers and steps that share it; and how it is seen that one of its tables changed."""

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

# Answers kept for each purpose, the last used ones. Training, evaluation, and the last batch of each, at some lengths.
KEPT = 32

LARGE = 2**16  # cells of a bool tensor from which on it is kept, and compared, at one bit a cell


class Memo:
    """The answers last used, by purpose: `key[0]` is the purpose, so that one does not push out the others."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, dict[Hashable, Any]] = {}
        self._lock = threading.Lock()

    def find(self, key: tuple[Hashable, ...]) -> Any:
        """The answer for this key, or MISSING."""
        with self._lock:
            answers = self._answers.get(key[0], {})
            if key not in answers:
                return MISSING
            answers[key] = value = answers.pop(key)  # now it is the last used
            return value

    def keep(self, key: tuple[Hashable, ...], value: Any) -> None:
        """Keep an answer; the one not used for longest makes room for it."""
        with self._lock:
            answers = self._answers.setdefault(key[0], {})
            answers[key] = value
            if len(answers) > KEPT:
                del answers[next(iter(answers))]


def contents_of(x: Tensor) -> Hashable:
    """What is no longer equal once a tensor holds something else, however that was written into it.

    On the CPU that is all that it holds: NumPy, `.data` and inference tensors count no changes. It takes 1 µs for a few
    KB, and 1 ms for the 16 MB of a bool matrix [4096, 4096], of which one bit a cell is kept. To look at a tensor of
    another device would wait for that device, so there it is torch's count of changes, which `.data` and kernels of
    one's own go round. An inference tensor there, without a count, is read if it is small; a large one never equals.
    """
    if type(x) not in (Tensor, Parameter):
        return object() if x.is_inference() else x._version
    if x.is_cpu:
        once = as_once(x)
        once = once.detach() if once.requires_grad else once
        values = (once.view(torch.int16) if once.dtype == torch.bfloat16 else once).numpy()
        is_large = values.size >= LARGE and values.dtype == np.bool_
        return x.shape, (np.packbits(values, axis=-1) if is_large else values).tobytes()
    if not x.is_inference():
        return x.data_ptr(), x._version
    return object() if x.is_meta or x.numel() > LARGE else contents_of(x.cpu())


def as_once(x: Tensor) -> Tensor:
    """A tensor without the repetitions that `expand` made of it."""
    if 0 not in x.stride():
        return x
    return x[tuple([slice(0, 1) if step == 0 else slice(None) for step in x.stride()])]


def converted(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor in the dtype of a table. An owned mask has what `x` holds when it is made, as if it were `x` itself."""
    found = x.to(dtype)
    if found is not x and is_plain():
        found._headwise_source = x  # type: ignore[attr-defined]
    return found


def source_of(table: Tensor) -> Tensor:
    """What a table was `converted` from, or itself."""
    return getattr(table, "_headwise_source", table)


def copy_of(x: Tensor) -> Tensor:
    """A copy of a tensor that later calls may use too, whatever inference mode this one is made in."""
    x = source_of(x).to(x.dtype)
    with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext():
        once = as_once(x)
        return x.clone() if once is x else once.clone().expand(x.shape)
