"""Computes what a page requests about a layer: tiles of a head's weights, weighted sums of rows, the terms of a row.

No tensor of the matrix's size is ever made. Scores are computed in pieces that fit the processor's cache, only for the
rows that matter, and not where the mask forbids. The softmax normalisers of the rows (`headwise.softmax`) are stored,
so that the next tile of the same rows computes only its own columns.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Generic, TypeVar, get_args

import numpy as np
import torch

from headwise.errors import ArgumentError
from headwise.records import AttentionRecord
from headwise.records.terms import Terms, head_row
from headwise.viewer.heads import CELLS, Head, How, Numbers

T = TypeVar("T")
Part = Generator[None, None, None]

# Rows computed by one part: many, so that each key is read rarely, but few enough that all threads have work. Fewer if
# the rows are far apart, because masked cells between the first and the last of them are not skipped.
FEWEST_ROWS, ROWS, SPREAD_ROWS = 16, 256, 64

# The largest number of cells in one answer: 16 MB.
ANSWER_CELLS = 2**22


@dataclasses.dataclass(frozen=True)
class Answer(Generic[T]):
    """A result that is still to be computed, in parts (generators): in any order, on several threads, or never.

    Each part yields every few milliseconds, so that more urgent work can run.
    """

    parts: Sequence[Part]
    result: Callable[[], T]  # called when all parts are done
    cells: int  # roughly the number of cells to compute

    def now(self) -> T:
        """Compute the result now, in this thread, and return it."""
        for part in self.parts:
            for _ in part:
                pass
        return self.result()


@dataclasses.dataclass(frozen=True)
class Question:
    """A request for a tile: some rows and columns of a head's matrix, reduced to height × width numbers.

    Each number stands for a block of cells (pairs of a query and a key); block i begins at cell ⌊i · cells / bins⌋.
    `how`: "max" = the largest weight of the block, "mean" = their mean, "sample" = the largest weight in the block's
    middle row (a coarse picture that needs only as many rows as it is high).
    """

    head: int
    rows: tuple[int, int]
    cols: tuple[int, int]
    height: int
    width: int
    how: How


class Answers:
    """Computes the results that a page requests about one layer: about one example of a record.

    `threads`: the number of threads; None = as many as torch uses.
    """

    def __init__(self, record: AttentionRecord, example: int, *, threads: int | None = None) -> None:
        self.record, self.example = record, example
        self.threads = torch.get_num_threads() if threads is None else threads
        self._heads: dict[int, Head] = {}

    def head(self, number: int) -> Head:
        """Return the head with this number; its `Head` is created at the first use."""
        self.record.shape  # noqa: B018 (raises RecordError if the record's tensors were changed since)
        if number not in self._heads:
            self._heads[number] = Head(self.record, self.example, number)
        return self._heads[number]

    def check(self, asked: Question) -> None:
        """Raise ArgumentError if a requested tile is not within the layer's matrix or is too large."""
        _, heads, q_len, k_len = self.record.shape
        if not 0 <= asked.head < heads:
            raise ArgumentError(f"head: expected 0 to {heads - 1}. Received: {asked.head}")
        if asked.how not in get_args(How):
            raise ArgumentError(f"how: expected {', '.join(get_args(How))}. Received: {asked.how}")
        for name, (first, past), length, side, bins in (
            ("rows", asked.rows, q_len, "height", asked.height),
            ("cols", asked.cols, k_len, "width", asked.width),
        ):
            if not 0 <= first < past <= length:
                raise ArgumentError(f"{name}: expected first-past within 0-{length}. Received: {first}-{past}")
            if not 1 <= bins <= past - first:
                raise ArgumentError(f"{side}: expected 1 to {past - first}, the number of {name}. Received: {bins}")
        if asked.height * asked.width > ANSWER_CELLS:
            raise ArgumentError(
                f"height × width: expected at most {ANSWER_CELLS:,}. Received: {asked.height} × {asked.width}"
            )

    def tile(self, asked: Question) -> Answer[Numbers]:
        """Compute the numbers of a tile, float32 [height, width]; NaN for a block whose cells the mask all forbids."""
        self.check(asked)
        head = self.head(asked.head)
        cuts, edges = _cuts(*asked.rows, asked.height), _cuts(*asked.cols, asked.width)
        rows, bins = _choose_rows(cuts, asked.how)
        out, lock = np.full((asked.height, asked.width), np.nan, np.float32), threading.Lock()

        def part(strip: slice) -> Part:
            weights = yield from head.blocks(rows[strip], edges, asked.how)
            starts = np.flatnonzero(np.diff(bins[strip], prepend=-1))
            where = bins[strip][starts]
            with lock:  # two strips may share a block
                if asked.how == "mean":
                    nothing = np.logical_and.reduceat(np.isnan(weights), starts)
                    sums = np.add.reduceat(np.nan_to_num(weights), starts) + np.nan_to_num(out[where])
                    out[where] = np.where(nothing, out[where], sums)
                else:
                    out[where] = np.fmax(out[where], np.fmax.reduceat(weights, starts))

        def result() -> Numbers:
            sizes = np.diff(cuts)[:, None] * np.diff(edges) if asked.how == "mean" else 1
            return (out / sizes).astype(np.float32)

        width = asked.cols[1] - asked.cols[0]
        cells = len(rows) * (width if head.knows(rows) else self.record.shape[3])
        return Answer([part(strip) for strip in self.strips(head, rows, width)], result, cells)

    def mix(self, shares: Numbers) -> Answer[Numbers]:
        """Compute the sum of all rows, weighted by `shares`: Σ_i shares[i] · (mean over heads of A[i, :]), float32 [K].

        A row whose share is 0 costs nothing.
        """
        _, heads, q_len, k_len = self.record.shape
        if shares.shape != (q_len,):
            raise ArgumentError(f"mix: expected {q_len} numbers, one per row. Received: {shares.size} numbers")
        if not np.isfinite(shares).all():
            raise ArgumentError("mix: expected finite numbers. Received: NaN or inf among them")
        rows = np.flatnonzero(shares)
        out, lock = np.zeros(k_len), threading.Lock()

        def part(head: Head, strip: slice) -> Part:
            for first, sums in head.sums(rows[strip], shares[rows[strip]]):
                with lock:
                    out[first : first + len(sums)] += sums
                yield

        some = [(head, strip) for head in map(self.head, range(heads)) for strip in self.strips(head, rows, k_len)]
        parts = [part(head, strip) for head, strip in some]
        return Answer(parts, lambda: (out / heads).astype(np.float32), heads * len(rows) * k_len)

    def terms(self, head: int, row: int) -> Answer[Numbers]:
        """Return all numbers that give the weights of a row, float64 in one array, which `data/terms.js` reads.

        In this order: D, scale, softcap, sink (NaN = none), q [D], k [K, D], bias [K], allowed [K] (1 = may attend).
        """
        self.record.shape  # noqa: B018 (raises RecordError if the record's tensors were changed since)
        _, _, _, k_len = self.record.shape
        found: list[Terms] = []

        def part() -> Part:
            found.append(head_row(self.record, self.example, head, row))
            yield

        def result() -> Numbers:
            (terms,) = found
            none = float("nan")
            bias = np.zeros(k_len) if terms.bias is None else terms.bias.numpy()
            numbers = (len(terms.q), terms.scale, terms.softcap or none, none if terms.sink is None else terms.sink)
            parts = (numbers, terms.q.numpy(), terms.k.numpy().ravel(), bias, terms.allowed.numpy())
            return np.concatenate([np.asarray(each, np.float64) for each in parts])

        return Answer([part()], result, k_len)

    def strips(self, head: Head, rows: Numbers, width: int) -> Sequence[slice]:
        """Split `rows` (ascending) into slices of rows to compute together, if `width` columns are requested."""
        together = len(rows) and rows[-1] - rows[0] < 2 * len(rows)
        share = max(FEWEST_ROWS, -(-len(rows) // self.threads))
        size = min(share, ROWS if together else SPREAD_ROWS)
        if len(rows) and not together:
            # Rows that are far apart and see few keys are computed one by one: together they would have all keys
            # between them.
            apart = head.keys(int(rows[len(rows) // 2])) * len(rows) < rows[-1] - rows[0]
            size = 1 if apart else size
        if head.knows(rows):
            size = max(size, CELLS // width)
        return [slice(start, start + size) for start in range(0, len(rows), size)]


def _cuts(first: int, past: int, bins: int) -> Numbers:
    """Cut the rows or columns [first, past) into `bins` blocks of neighbours; return the bins + 1 edges."""
    return first + np.arange(bins + 1) * (past - first) // bins


def _choose_rows(cuts: Numbers, how: How) -> tuple[Numbers, Numbers]:
    """Return (the rows that must be computed for these blocks of rows, the index of each row's block)."""
    blocks = np.arange(len(cuts) - 1)
    if how == "sample":
        return (cuts[:-1] + cuts[1:]) // 2, blocks
    return np.arange(cuts[0], cuts[-1]), np.repeat(blocks, np.diff(cuts))
