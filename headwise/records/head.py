"""One head of one example of a record: its scores, some rows at a time, in pieces that fit the processor's cache.

Where the mask forbids a whole block nothing is computed, and single cells are only looked at where it cuts through one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headwise.masks import Extent

if TYPE_CHECKING:
    from headwise.records.record import AttentionRecord

# Cells of a piece: 2 MB of float32, which stay in the cache while they are asked for everything.
CELLS = 2**19

# The mask is asked about blocks of this many keys.
BLOCK = 64


class Head:
    """The scores of one head of one example.

    Args:
        record: all heads and examples.
        example, head: which one.
    """

    def __init__(self, record: AttentionRecord, example: int, head: int) -> None:
        self.scores = record.call.part(b=slice(example, example + 1), heads=slice(head, head + 1))
        self.dtype = self.scores.dtype
        self.mask = record.mask
        self.b = example if record.mask is not None and record.mask.batch else None
        self.h = head if record.mask is not None and record.mask.heads else None

    def pieces(self, rows: Tensor, first: int = 0, past: int | None = None) -> Iterator[tuple[int, Tensor]]:
        """The scores of `rows` and the keys [first, past), -inf where forbidden, as (first key, [rows, keys]).

        Rows that stand together are quickest. Keys that none of them may attend to may be left out.
        """
        past = self.scores.shape[3] if past is None else past
        extents = self._extents(rows, first, past)
        some = np.flatnonzero(extents)
        if not some.size:
            return
        step = max(1, CELLS // (BLOCK * len(rows)))  # in blocks
        for block in range(some[0], some[-1] + 1, step):
            codes = extents[block : min(block + step, some[-1] + 1)]
            if codes.any():
                start = first + block * BLOCK
                yield start, self._piece(rows, start, min(start + len(codes) * BLOCK, past), codes)

    def lse(self, rows: Tensor) -> Tensor:
        """The log-sum-exps of rows, [rows]."""
        total = self.scores.q.new_full((len(rows),), -torch.inf, dtype=self.dtype)
        for _, s in self.pieces(rows):
            total = torch.logaddexp(total, s.logsumexp(-1))
        return self.with_sink(total)

    def with_sink(self, total: Tensor) -> Tensor:
        """The log-sum-exps of rows from those of all their keys."""
        return total if self.scores.sinks is None else torch.logaddexp(total, self.scores.sinks.to(total))

    def _piece(self, rows: Tensor, start: int, stop: int, codes: NDArray[np.int8]) -> Tensor:
        s = self.scores.scores(rows, slice(start, stop))[0, 0]
        edges = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
        for low, high in itertools.pairwise(edges):  # blocks with the same extent
            keys = slice(low * BLOCK, min(high * BLOCK, stop - start))
            if codes[low] == Extent.NONE:
                s[:, keys] = -torch.inf
            elif codes[low] == Extent.SOME:
                assert self.mask is not None
                cols = torch.arange(start + keys.start, start + keys.stop, device=rows.device)
                allowed = self.mask.cells(rows, cols, b=self.b, h=self.h)[0, 0]
                s[:, keys].masked_fill_(~allowed, -torch.inf)
        return s

    def _extents(self, rows: Tensor, first: int, past: int) -> NDArray[np.int8]:
        """How much of each block of keys the rows may attend to."""
        low = torch.arange(first, past, BLOCK)
        if self.mask is None:
            return np.full(len(low), Extent.ALL, np.int8)
        if self.mask.cellwise:  # to ask about blocks would look at every cell just as well
            return np.full(len(low), Extent.SOME, np.int8)
        top, bottom = (torch.full_like(low, int(end)) for end in (rows.min(), rows.max() + 1))
        codes = self.mask.rectangles(top, bottom, low, (low + BLOCK).clamp(max=past))
        return codes[self.b or 0, self.h or 0].numpy()
