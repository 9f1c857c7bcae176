"""Bool tensors that are given as masks: what they are (causal, padding, ...) is found once and remembered."""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Hashable
from dataclasses import dataclass

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from headwise.masks.band import Band
from headwise.masks.cellwise import Dense
from headwise.masks.mask import Mask
from headwise.masks.memo import Memo, Version, version_of
from headwise.masks.recognise import Cells, at_its_smallest, simple_parts
from headwise.tracing import is_plain

# Tensors that are remembered, the last used ones. A model has few at a time: full and windowed, of some lengths.
KEPT = 32

# Cells from which on a tensor is recognised when it is first seen, which is quick beside its call; a smaller one only
# when it comes again, for many do not: every step of decoding has its own.
AT_ONCE = 2**16


@dataclass
class _Known:
    """What is known of a tensor. It has no hold on the tensor's memory."""

    storage: StorageWeakRef  # as long as this is kept, no other storage can have its address
    version: Version
    memo: Memo  # of the tensor as a dense mask
    looked_at: bool = False
    simple: Mask | None = None


_known: dict[Hashable, _Known] = {}  # the last used at the end
_lock = threading.Lock()


def recall(dense: Dense, q_len: int, k_len: int) -> Mask:
    """The mask of a tensor, for Q queries and K keys: what it was recognised as, else `dense` with what it remembers.

    A tensor is the same if it is the same part of the same storage, unchanged as far as `Mask.version` sees; the object
    may be another one. Inference tensors, which count no changes, are not remembered.
    """
    given = dense.allowed
    sizes = (q_len if given.shape[2] == 1 else given.shape[2], k_len if given.shape[3] == 1 else given.shape[3])
    if sizes != (q_len, k_len) or 0 in sizes or not is_plain():
        return dense
    if given.is_inference() or type(given) is not Tensor:
        return dense
    storage, version = given.untyped_storage(), version_of(given)
    key = (storage._cdata, given.data_ptr(), given.shape, given.stride(), sizes)
    with _lock:
        known = _known.pop(key, None)
        is_new = known is None or known.version != version
        if known is None or is_new:
            for old in [old for old, each in _known.items() if each.storage.expired()]:
                del _known[old]
            known = _Known(StorageWeakRef(storage), version, Memo())
        _known[key] = known
        while len(_known) > KEPT:
            del _known[next(iter(_known))]
    cells = given.expand(-1, -1, *sizes)
    if not known.looked_at:
        if is_new and cells.numel() < AT_ONCE:
            return dense
        known.simple, known.looked_at = _simple(cells), True
    if known.simple is not None:
        return known.simple
    again = Dense(cells)
    again.__dict__["_memo"] = known.memo
    return again


def _simple(cells: Tensor) -> Mask | None:
    """What a tensor is recognised as, if it is more than single cells."""
    parts = simple_parts(Cells(at_its_smallest(cells)))
    if parts is None:
        return None
    mask = functools.reduce(operator.and_, parts) if parts else Band(None, None, 0)
    return mask.to(cells.device)
