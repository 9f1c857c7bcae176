"""Computes weights of one head: of blocks of cells, or weighted sums of rows, in pieces that fit the cache.

Where the mask forbids a whole block, nothing is computed; single cells (pairs of a query and a key) are evaluated only
in blocks that the mask allows in part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterator
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headwise.records import AttentionRecord
from headwise.records.statistics.lse import compute_normaliser
from headwise.records.tiles import forbid, forbidden_keys
from headwise.softmax import EMPTY, Normaliser, finite
from headwise.tiles import WIDTH, Run, runs_of_rows

Numbers = NDArray[Any]
How = Literal["max", "mean", "sample"]

# Cells of a piece: 2 MB of float32, which stay in the cache while all results are computed.
CELLS = 2**19

# For so few rows over so many keys, the softmax normalisers are computed before the weights: this reads each key once.
FEW, LONG_ROW = 16, 2**15


class Head:
    """The scores of one head of one example, and the softmax normalisers of the rows that were computed so far."""

    def __init__(self, record: AttentionRecord, example: int, head: int) -> None:
        self.scores = record.call.part(b=slice(example, example + 1), heads=slice(head, head + 1))
        self.dtype, self.mask = self.scores.dtype, record.mask
        self.b = example if record.mask is not None and record.mask.batch else None
        self.h = head if record.mask is not None and record.mask.heads else None
        known: Normaliser | None = vars(record).get("_normaliser")  # known already, if statistics were requested
        if known is None:
            self.known = Normaliser(*self.scores.q.new_full((2, self.scores.shape[2]), torch.nan, dtype=self.dtype))
        else:
            self.known = Normaliser(*(x[example, head].clone() for x in known))

    def pieces(self, rows: Tensor, first: int = 0, past: int | None = None) -> Iterator[tuple[int, Tensor]]:
        """Yield (first key, scores [rows, keys]) for `rows` and the keys [first, past), -inf where the mask forbids.

        Consecutive rows are fastest. Keys to which none of the rows may attend may be left out.
        """
        if not len(rows):
            return
        past = self.scores.shape[3] if past is None else past
        runs = runs_of_rows(self.mask, self.b, self.h, int(rows.min()), int(rows.max()) + 1, first, past)
        step = max(1, CELLS // (WIDTH * len(rows))) * WIDTH
        for start in range(runs[0].lo, runs[-1].hi, step) if runs else ():
            stop = min(start + step, runs[-1].hi)
            parts = [Run(max(run.lo, start), min(run.hi, stop), run.masked) for run in runs]
            parts = [part for part in parts if part.lo < part.hi]
            if parts:
                s = self.scores.scores(rows, slice(start, stop))[0, 0]
                forbid(s, forbidden_keys(self.mask, rows, parts, start, stop, self.b, self.h))
                yield start, s

    def keys(self, row: int) -> int:
        """Count the keys to which a row may attend; all keys count in a block of which the mask allows a part."""
        runs = runs_of_rows(self.mask, self.b, self.h, row, row + 1, 0, self.scores.shape[3])
        return sum(run.hi - run.lo for run in runs)

    def knows(self, rows: Numbers | slice) -> bool:
        """Return whether the softmax normalisers (`headwise.softmax`) of all these rows are known already."""
        return not bool(self.known.log_sum[rows].isnan().any())

    def blocks(self, rows: Numbers, edges: Numbers, how: How) -> Generator[None, None, Numbers]:
        """Compute the largest weight of each block of columns, for some rows: [rows, blocks]. `edges`: of the blocks.

        With "mean" it is the sum of the block's weights. NaN if the mask forbids the whole block.
        """
        index = torch.from_numpy(rows).to(self.scores.q.device)
        few = len(rows) <= FEW and self.b is None and self.h is None
        if few and not self.knows(rows) and self.keys(int(rows[-1])) >= LONG_ROW:
            of_rows = compute_normaliser(dataclasses.replace(self.scores, mask=self.mask), index)
            self._keep(index, Normaliser(*(x[0, 0] for x in of_rows)))
        known = self._known(index) if self.knows(rows) else None
        total = self._none(len(rows))
        found = total.log_sum[:, None].repeat(1, len(edges) - 1)  # scores; log Σ exp of them for "mean"
        join = torch.logaddexp if how == "mean" else torch.maximum
        for first, s in self.pieces(index) if known is None else self.pieces(index, int(edges[0]), int(edges[-1])):
            if known is None:
                total = total.merged(Normaliser.of(s))
            low, high = max(first, edges[0]), min(first + s.shape[1], edges[-1])
            if low < high:
                blocks = slice(np.searchsorted(edges, low, "right") - 1, np.searchsorted(edges, high))
                starts = np.maximum(edges[blocks], low) - low
                part = _reduced(s[:, low - first : high - first], starts, how, known)
                found[:, blocks] = join(found[:, blocks], part)
            yield
        known = self._learn(index, total) if known is None else known
        return known.weights(found).masked_fill_(found == EMPTY, torch.nan).cpu().numpy()

    def sums(self, rows: Numbers, shares: Numbers) -> Generator[tuple[int, Numbers], None, None]:
        """Yield parts of Σ_i shares[i] · A[i, :], as pairs (first column, values): all parts together are the sum."""
        index = torch.from_numpy(rows).to(self.scores.q.device)
        if not self.knows(rows):
            total = self._none(len(rows))
            for first, s in self.pieces(index):
                total = total.merged(Normaliser.of(s))
                yield first, np.empty(0)
            self._learn(index, total)
        known, factors = self._known(index), torch.from_numpy(shares).to(self.scores.q.device, self.dtype)
        for first, s in self.pieces(index):
            yield first, (factors @ known.weights(s)).cpu().numpy()

    def _none(self, rows: int) -> Normaliser:
        return Normaliser.empty(self.known.highest.new_empty(rows))

    def _known(self, rows: Tensor) -> Normaliser:
        return Normaliser(*(x[rows] for x in self.known))

    def _learn(self, rows: Tensor, of_keys: Normaliser) -> Normaliser:
        sinks = self.scores.sinks
        return self._keep(rows, of_keys.with_sinks(None if sinks is None else sinks[0]))

    def _keep(self, rows: Tensor, found: Normaliser) -> Normaliser:
        for known, x in zip(self.known, found, strict=True):
            known[rows] = x
        return found


def _reduced(s: Tensor, starts: Numbers, how: How, known: Normaliser | None) -> Tensor:
    """Reduce each block of columns to its largest score, or to log Σ exp of its scores for "mean": [rows, blocks]."""
    if len(starts) == s.shape[1]:
        return s
    highest = _by_blocks(np.maximum, s, starts)
    if how != "mean":
        return highest
    near = finite(s.amax(-1) if known is None else known.highest)[:, None]  # so that exp does not overflow
    sums = _by_blocks(np.add, (s - near).exp_(), starts)
    logs = (sums.log() + near).clamp_(min=torch.finfo(s.dtype).min)  # only masked blocks are -inf
    return logs.masked_fill_(highest == EMPTY, EMPTY)


def _by_blocks(reduce: np.ufunc, s: Tensor, starts: Numbers) -> Tensor:
    return torch.from_numpy(reduce.reduceat(s.cpu().numpy(), starts, axis=1)).to(s.device)
