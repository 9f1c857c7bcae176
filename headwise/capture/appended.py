"""Remembers the keys that each decoding step has read, so that the next step's keys need not be compared with them.

A growing cache makes the keys of a step by `torch.cat` of its older keys and the new keys. If the first argument of
`torch.cat` was the tensor that the last step read (or the end of that tensor, for a window that moves), the older keys
are exactly the keys of the last step. torch's version counters tell whether a tensor was changed in place since then.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

from torch import Tensor


@dataclasses.dataclass(eq=False, slots=True)
class Keys:
    """The tensor of keys that one decoding step has read, with its version at that time, which shows later changes."""

    alive: weakref.ref[Tensor]
    version: int
    older: Keys | None = None
    begin: int = 0  # the number of these keys that are the last keys of `older`

    def are(self, x: Tensor) -> bool:
        """Return whether `x` is this tensor of keys, not changed in place since the step read it."""
        return self.alive() is x and x._version == self.version


class Appended:
    """The tensors of keys that decoding steps have read, and the tensors that `torch.cat` made of them and new keys."""

    def __init__(self) -> None:
        self._known: dict[int, Keys] = {}  # by the id of a tensor that is alive

    def read(self, k: Tensor) -> Keys | None:
        """Return the `Keys` of a step's keys `k` [B, G, K, D]; None if changes of `k` in place could not be noticed."""
        whole = _whole(k)
        if whole is None or _left_out(k, whole) != 0:
            return None
        return self._find(whole) or self._put(whole)

    def join(self, out: Any, /, tensors: Any = (), dim: Any = 0, *_: Any, **__: Any) -> None:
        """Remember `out`, the result of `torch.cat` (or a like operation), if its first argument holds known keys."""
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
    """Return the tensor of which `x` is a view, or `x` itself; None if torch counts no changes in place of `x`."""
    if type(x) is not Tensor or x.ndim != 4 or x.is_inference():
        return None
    return x if x._base is None else x._base


def _left_out(x: Tensor, whole: Tensor) -> int | None:
    """Return how many keys of `whole` come before `x`, if `x` is a view of all keys after them; otherwise None."""
    if x is whole:
        return 0
    (*lead, keys, width), strides = x.shape, x.stride()
    if whole.ndim != 4 or strides != whole.stride() or x.dtype != whole.dtype:
        return None
    first = whole.shape[2] - keys
    alike = [*lead, width] == [*whole.shape[:2], whole.shape[3]]
    return first if alike and x.storage_offset() - whole.storage_offset() == first * strides[2] else None
