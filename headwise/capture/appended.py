"""Remembers which keys are those of an earlier decoding step with new keys appended: they need not be compared.

A cache that grows is a `torch.cat` of its older keys and the keys of a step. If the first argument was the tensor that
the last step read (or the end of it, in a window that moves), the older keys of this step are the last step's. torch's
version counters tell whether a tensor was changed in place since it was read.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

from torch import Tensor


@dataclasses.dataclass(eq=False, slots=True)
class Keys:
    """The keys of one decoding step, as they were when the step was read."""

    alive: weakref.ref[Tensor]
    version: int
    older: Keys | None = None
    begin: int = 0  # the number of these keys that are the last keys of `older`

    def are(self, x: Tensor) -> bool:
        """Whether this tensor still holds these keys, unchanged."""
        return self.alive() is x and x._version == self.version


class Appended:
    """The keys that decoding steps have read, and the tensors in which new keys were appended to them."""

    def __init__(self) -> None:
        self._known: dict[int, Keys] = {}  # by the id of a tensor that is alive

    def read(self, k: Tensor) -> Keys | None:
        """Return the keys [B, G, K, D] of a step as `Keys`; None if a change of them could not be noticed."""
        whole = _whole(k)
        if whole is None or _left_out(k, whole) != 0:
            return None
        return self._find(whole) or self._put(whole)

    def join(self, out: Any, /, tensors: Any = (), dim: Any = 0, *_: Any, **__: Any) -> None:
        """Note that `out` is the result of `torch.cat` (or an operation like it): called after the operation."""
        if not self._known or dim not in (-2, 2) or not isinstance(tensors, (tuple, list)) or len(tensors) < 2:
            return
        first, made = tensors[0], _whole(out)
        whole = _whole(first)
        older = None if whole is None else self._find(whole)
        if whole is None or older is None or made is None or made is not out or made.dtype != first.dtype:
            return
        if _left_out(first, whole) is not None:
            self._put(made, older, first.shape[2])

    def _find(self, x: Tensor) -> Keys | None:
        found = self._known.get(id(x))
        return found if found is not None and found.are(x) else None

    def _put(self, x: Tensor, *before: Any) -> Keys:
        key, known = id(x), self._known
        known[key] = found = Keys(weakref.ref(x, lambda _: known.pop(key, None)), x._version, *before)
        return found


def _whole(x: Any) -> Tensor | None:
    """Return the tensor of which `x` is a view, or `x` itself; None if torch counts no changes of it."""
    if type(x) is not Tensor or x.ndim != 4 or x.is_inference():
        return None
    return x if x._base is None else x._base


def _left_out(x: Tensor, whole: Tensor) -> int | None:
    """Return how many keys of `whole` come before `x`, if `x` has all keys after them; None if `x` is another part."""
    if x is whole:
        return 0
    (*lead, keys, width), strides = x.shape, x.stride()
    if whole.ndim != 4 or strides != whole.stride() or x.dtype != whole.dtype:
        return None
    first = whole.shape[2] - keys
    alike = [*lead, width] == [*whole.shape[:2], whole.shape[3]]
    return first if alike and x.storage_offset() - whole.storage_offset() == first * strides[2] else None
