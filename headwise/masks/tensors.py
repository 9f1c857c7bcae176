"""Recognises bool tensors that are given as masks (causal, padding, …), each once, and remembers the result."""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Hashable
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from headwise.masks.band import Band
from headwise.masks.cellwise import Dense
from headwise.masks.mask import Mask
from headwise.masks.memo import LARGE
from headwise.masks.recognise import Cells, at_its_smallest, simple_parts
from headwise.tracing import is_plain

# How many of the last used tensors are remembered. A model has few at a time: full and windowed, of some lengths.
KEPT = 32


# For each tensor: a weak reference to its storage (it does not keep the memory alive, but while it exists no other
# storage can have the same address), the contents at the last use, and their owned mask. The last used is at the end.
_known: dict[Hashable, tuple[StorageWeakRef, Any]] = {}
_lock = threading.Lock()


def recall(dense: Dense, q_len: int, k_len: int) -> Mask:
    """Return the owned mask of a bool tensor, for Q queries and K keys: its recognised form, or else a copy of it.

    A recognised form is a small equal mask, such as `causal` (`recognise`); an owned mask is one whose tensors nobody
    else can change (the copy of a large tensor has one bit per cell). A tensor counts as seen before if it is the same
    view of the same storage with the same contents (`memo.read_contents`), even if the Python object is another one. A
    large tensor is recognised when it is first seen, which is quick compared with its attention call. A small tensor is
    recognised only when it comes again, because many never do: every decoding step has a new one.
    """
    given = dense.allowed
    sizes = (q_len if given.shape[2] == 1 else given.shape[2], k_len if given.shape[3] == 1 else given.shape[3])
    if sizes != (q_len, k_len) or 0 in sizes or type(given) is not Tensor or not is_plain():
        return dense
    if given.is_inference() and not given.is_cpu:  # it is not known whether it came again
        return dense
    storage = given.untyped_storage()
    key = (storage._cdata, given.data_ptr(), given.shape, given.stride())
    with _lock:
        reference, before = _known.pop(key, (None, None))
        if reference is None:
            for old in [old for old, (each, _) in _known.items() if each.expired()]:
                del _known[old]
            reference = StorageWeakRef(storage)
    if before is not None:
        dense.__dict__["_owned"] = before
    owned = dense.owned()
    now = dense.__dict__.get("_owned")
    with _lock:
        _known[key] = reference, now
        while len(_known) > KEPT:
            del _known[next(iter(_known))]
    if now is not before and given.numel() < LARGE:
        return owned
    return owned.remember(("simple", q_len, k_len), lambda mask: _simple(mask, q_len, k_len))


def _simple(mask: Mask, q_len: int, k_len: int) -> Mask:
    """Return the recognised form of a mask, or the mask itself if no simple form is found."""
    cells = at_its_smallest(mask.aligned(q_len, k_len).to_bool(q_len, k_len))
    parts = simple_parts(Cells(cells))
    if parts is None:
        return mask
    found = functools.reduce(operator.and_, parts) if parts else Band(None, None, 0)
    return found.to(cells.device)
