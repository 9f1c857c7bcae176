"""Recognises masks by three numbers per row (query): how many keys the query sees, the first of them and the last.

"Keys that count" are all keys, or only those that some query sees (the others are padding). If a row has no gap among
the keys that count, the three numbers say everything about the row. So whether a mask is a band, documents or the like
is decided from Q rows of three numbers, not from Q × K cells. The tables are NumPy arrays, because they are small, and
each call of torch would cost more than its work.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headwise.masks.band import Band
from headwise.masks.documents import Documents
from headwise.masks.mask import Mask
from headwise.masks.padding import PaddingKeys, PaddingLengths
from headwise.masks.prefix import Prefix
from headwise.masks.runs import Runs

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Limits = tuple[int | None, int | None]  # lowest and highest k - q; None = no limit on that side


class RowRuns:
    """The rows of a mask: the keys that each query sees. Methods such as `band` find masks whose product is these rows.

    A product is a list of masks to join by `&`; None = no product of this kind has these rows.
    """

    def __init__(self, count: Ints, first: Ints, last: Ints, seen: Bools, care: Bools | None = None):
        """Take the number of keys that each query sees, the first and the last key: `count`, `first`, `last` [B, H, Q].

        They are 0, 0, -1 for an empty row. `seen` [B|1, K] is True for keys that count, which are not padding. Rows
        where `care` [B, H, Q] is False may have any cells; their count must be 0.
        """
        self.count, self.first, self.last, self.care = count, first, last, care
        self.seen = np.broadcast_to(seen, (len(count), seen.shape[1]))
        self.q_len, self.k_len = count.shape[2], seen.shape[1]
        self.filled = count > 0
        # rank[k] is the number of counted keys before key k: by rank, a row without gaps is a run.
        self.rank = np.zeros((len(count), self.k_len + 1), np.int64)
        np.cumsum(self.seen, axis=1, out=self.rank[:, 1:])
        self.start = self._at(self.rank, first)
        self.stop = self._at(self.rank, last + 1)

    @functools.cached_property
    def unbroken(self) -> bool:
        """Whether no row has a gap: only then do count, first and last say everything about the rows."""
        return bool((self.stop - self.start == self.count).all())

    def union(self) -> Bools:
        """Find the keys that some query sees, bool [B, K]. No row may have a gap among all keys."""
        keys = []
        for first, last in zip(self.first, self.last, strict=True):
            begun = np.bincount(first.ravel(), minlength=self.k_len + 1)
            ended = np.bincount(last.ravel() + 1, minlength=self.k_len + 1)
            keys.append(np.cumsum(begun - ended)[: self.k_len] > 0)
        return np.stack(keys)

    def padding(self) -> list[Mask]:
        """Return a list with the mask that hides the keys that do not count, or an empty list if all keys count."""
        return [] if self.seen.all() else [key_padding(self.seen)]

    def band(self) -> list[Mask] | None:
        """Return masks whose product (`&`) has these rows: a band, padding ([] if all is allowed); None if none fit."""
        limits = self._limits(np.int64(0), self.rank[:, -1, None, None])
        return None if limits is None else [*self._band(limits), *self.padding()]

    def prefix(self) -> list[Mask] | None:
        """Return masks whose product (`&`) has these rows: a prefix and padding; None if no prefix fits."""
        if self.count.shape[1] > 1 or not (self.filled.all() and (self.start == 0).all()):
            return None
        stop, reach = self.stop[:, 0], self.last[:, 0] - np.arange(self.q_len)
        beyond = stop > stop.min(-1, keepdims=True)
        if not beyond.any():
            return None
        n = self.last[:, 0].min(-1) + 1
        offset = int(reach[beyond].max())
        ends = np.maximum(n[:, None], self._keys(offset + 1))
        if (np.take_along_axis(self.rank, ends, 1) != stop).any():
            return None
        return [Prefix(_once(n), offset), *self.padding()]

    def documents(self) -> list[Mask] | None:
        """Return masks whose product (`&`) has these rows: consecutive documents, a band and padding; None if none fit.

        None also if the tables of `runs` are smaller: with more than twice as many keys as queries.
        """
        offset = self.k_len - self.q_len
        if self.count.shape[1] > 1 or not 0 <= offset <= self.q_len:
            return None
        ids = np.full(self.seen.shape, -1, np.int64)
        begin, end = np.zeros_like(self.start), np.zeros_like(self.start)
        for b, (seen, at) in enumerate(zip(self.seen, ids, strict=True)):
            filled, n = self.filled[b, 0], self.rank[b, -1]
            start, stop = self.start[b, 0, filled], self.stop[b, 0, filled]
            # Two neighbouring keys that one query sees belong to one document.
            change = np.bincount(start + 1, minlength=n + 1) - np.bincount(stop, minlength=n + 1)
            opens = np.cumsum(change)[:n] <= 0
            document = np.cumsum(opens) - 1
            starts = np.append(np.flatnonzero(opens), n)
            own = np.full(self.q_len, -1)
            own[filled] = document[start]
            begin[b, 0, filled], end[b, 0, filled] = starts[own[filled]], starts[own[filled] + 1]
            at[seen] = document
            at, seen = at[offset:], seen[offset:]
            # A query belongs to the document of the key at its own position, unless no query sees that key.
            if (at[seen] != own[seen]).any():
                return None
            at[~seen] = own[~seen]
        limits = self._limits(begin, end)
        if limits is None:
            return None
        hidden = self.padding() if ((ids >= 0) & ~self.seen).any() else []
        return [Documents(_once(ids), offset), *self._band(limits), *hidden]

    def runs(self) -> list[Mask]:
        """Return masks whose product (`&`) has these rows: runs and padding. They always exist if no row has a gap."""
        start, stop = (np.where(self.filled, x, 0).astype(np.int32) for x in (self.first, self.last + 1))
        return [Runs(torch.from_numpy(start), torch.from_numpy(stop)), *self.padding()]

    def documents_in_pieces(self, early: Ints) -> Iterator[list[Mask]]:
        """Yield candidates: documents, a band and padding whose product has as many keys in each row as this mask.

        The first K - Q keys have no query at their position. `early` [B, K - Q] has for each of these keys the first
        key that is seen by the first query that sees this key.
        """
        offset = self.k_len - self.q_len
        own = np.arange(offset, self.k_len)
        # Each position points to the first key that its query sees, which is in the same document, or to itself. To
        # follow these pointers to their end finds one key that represents the document.
        first = np.where(self.filled[:, 0], self.first[:, 0], own)
        pointer = np.concatenate([early, np.minimum(first, own)], axis=1)
        for _ in range(self.k_len.bit_length()):
            pointer = np.take_along_axis(pointer, pointer, 1)
        ids = np.where(self.seen, pointer, -1)
        # A query at whose position no key is seen belongs to the document that it sees.
        looked_at = np.where(self.filled[:, 0], np.take_along_axis(pointer, first, 1), -1)
        ids[:, offset:] = np.where(self.seen[:, offset:], ids[:, offset:], looked_at)
        hidden = self.padding() if ((ids >= 0) & ~self.seen).any() else []
        documents = Documents(_once(ids), offset)
        low, high = self._reach()
        limits: list[Limits] = [(None, None), (None, high), (low, high)]
        yield from ([documents, *self._band(x), *hidden] for x in limits if self._has_counts(ids, x))

    def _has_counts(self, ids: Ints, limits: Limits) -> bool:
        """Whether each query sees `count` keys, if the mask is the documents `ids` & the band `limits` & padding."""
        size = self.k_len + 1
        begin = 0 if limits[0] is None else self._keys(limits[0])
        end = self.k_len if limits[1] is None else self._keys(limits[1] + 1)
        for document, seen, count in zip(ids, self.seen, self.count[:, 0], strict=True):
            # Sorted by document, then by position.
            keys = np.sort((document * size + np.arange(self.k_len))[seen & (document >= 0)])
            own = document[self.k_len - self.q_len :]
            found = np.searchsorted(keys, own * size + end) - np.searchsorted(keys, own * size + begin)
            if (np.where(own >= 0, found, 0) != count).any():
                return False
        return True

    def _limits(self, begin: Ints | np.int64, end: Ints) -> Limits | None:
        """Find the limits of the band that cuts each row out of its ranks [begin, end); None if no band does.

        A rank numbers the keys that count, from 0. `begin` and `end` may differ from row to row, as documents do.
        """
        reach_low, reach_high = self._reach()
        # Only a band limits a row within a document. If it limits none, there may still be rows that only a band
        # empties.
        lows = [reach_low] if (self.filled & (self.start > begin)).any() else [None, reach_low]
        highs = [reach_high] if (self.filled & (self.stop < end)).any() else [None, reach_high]
        candidates = itertools.product(lows, highs)
        return next((limits for limits in candidates if self._is(*limits, begin, end)), None)

    def _is(self, low: int | None, high: int | None, begin: Ints | np.int64, end: Ints) -> bool:
        """Whether every row is its ranks [begin, end), limited by the band from `low` to `high`. (See `_limits`.)"""
        if low is not None:
            begin = np.maximum(begin, self.rank[:, self._keys(low)][:, None])
        if high is not None:
            end = np.minimum(end, self.rank[:, self._keys(high + 1)][:, None])
        same = np.where(self.filled, (self.start == begin) & (self.stop == end), begin >= end)
        return bool((same if self.care is None else same | ~self.care).all())

    def _band(self, limits: Limits) -> list[Mask]:
        low, high = limits
        natural = self.k_len - self.q_len
        if low is None:
            return [] if high is None else [Band(None, 0, high)]
        offset = max(natural, low) if high is None else min(max(natural, low), high)
        return [Band(offset - low, None if high is None else high - offset, offset)]

    def _reach(self) -> tuple[int, int]:
        """Return the lowest and the highest difference k - q of the allowed cells (pairs of a query q and a key k)."""
        q = np.arange(self.q_len)
        return int((self.first - q)[self.filled].min()), int((self.last - q)[self.filled].max())

    def _keys(self, shift: int) -> Ints:
        """Return q + shift, limited to 0 … K, for every query q."""
        return np.clip(np.arange(self.q_len) + shift, 0, self.k_len)

    @staticmethod
    def _at(table: Ints, index: Ints) -> Ints:
        """Look up table[b, index[b, h, q]] for every b, h and q: [B, H, Q]."""
        return np.take_along_axis(table, index.reshape(len(index), -1), 1).reshape(index.shape)


def key_padding(real: Bools) -> Mask:
    """Make a padding mask from the real keys, bool [B, K]: `lengths` if in every example the real keys come first."""
    lengths = real.sum(1)
    if (real == (np.arange(real.shape[1]) < lengths[:, None])).all():
        return PaddingLengths(_once(lengths))
    return PaddingKeys(_once(real))


def _once(table: Ints | Bools) -> Tensor:
    """Copy a table [B, ...] to a tensor; keep one example [1, ...] if all examples are equal."""
    return torch.from_numpy(table[:1].copy() if (table == table[:1]).all() else table.copy())
