"""What a mask has worked out, until one of its tensors changes: layers and steps that share a mask share the work."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any

from torch import Tensor

Version = tuple[Hashable, ...]
MISSING = object()

# Answers kept for each purpose, the last used ones. Training, evaluation, and the last batch of each, at some lengths.
KEPT = 32

_SAMPLED = 61  # numbers of a large tensor that are compared; odd, so that they do not all fall into a few columns


class Memo:
    """The answers last used, by purpose: `key[0]` is the purpose, so that one does not push out the others."""

    def __init__(self) -> None:
        self._version: Version = ()
        self._answers: dict[Hashable, dict[Hashable, Any]] = {}
        self._lock = threading.Lock()

    def find(self, version: Version, key: tuple[Hashable, ...]) -> Any:
        """The answer for this key, or MISSING; all answers are dropped if they were made for another version."""
        with self._lock:
            if version != self._version:
                self._version, self._answers = version, {}
            answers = self._answers.get(key[0], {})
            if key not in answers:
                return MISSING
            answers[key] = value = answers.pop(key)  # now it is the last used
            return value

    def keep(self, version: Version, key: tuple[Hashable, ...], value: Any) -> None:
        """Keep an answer, unless the version has changed since; the one not used for longest makes room for it."""
        with self._lock:
            if version == self._version:
                answers = self._answers.setdefault(key[0], {})
                answers[key] = value
                if len(answers) > KEPT:
                    del answers[next(iter(answers))]


def version_of(x: Tensor) -> Version:
    """What changes when a tensor is changed in place: torch's version counter, the address, and a sample of the values.

    Writes through NumPy, through `.data` or to an inference tensor change no counter. On the CPU the sample tells of
    those that change one of the compared numbers: all of a tensor of up to 121, of a larger one 61 to 121, evenly
    spread. A change between them is not seen.
    """
    counter = None if x.is_inference() else x._version
    if x.device.type != "cpu" or type(x) is not Tensor:
        return (counter,)
    values = x.numpy()
    if x.is_contiguous():
        sample = values.reshape(-1)[:: max(1, x.numel() // _SAMPLED) | 1]
    else:
        sample = values[tuple(slice(None, None, -(-size // 4) or 1) for size in x.shape)]
    return counter, x.data_ptr(), sample.tobytes()
