"""The attention matrix as a small picture, each cell of which is the mean or the maximum of the weights it covers."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool1d, adaptive_max_pool1d

from headwise.call import Scores
from headwise.errors import ArgumentError
from headwise.records.statistics.part import WeightTile
from headwise.records.statistics.statistic import Statistic

# Cells of the buffer in which rows are collected.
BUFFER_CELLS = 2**20

Places = NDArray[np.int64]


@dataclasses.dataclass
class Pooled(Statistic):
    """A small picture of the matrix, [B, H, h, w]. `size` is (h, w), or one number for both, at most (Q, K).

    Cell i of h covers rows ⌊i Q / h⌋ to ⌈(i + 1) Q / h⌉, as in torch's adaptive pooling.

    Rows are first joined to strips, which are cut wherever a cell of the picture begins or ends. Each strip is
    then pooled over its keys, and added to the one or two cells to which it belongs.
    """

    unit = "share"

    # The pooling over the rows of a strip, over the keys of a cell, and over two strips or cells.
    over_rows: ClassVar[Callable[..., Tensor]]
    over_keys: ClassVar[Callable[..., Tensor]]
    join: ClassVar[Callable[..., Tensor]]

    size: int | tuple[int, int] = 64

    def __post_init__(self) -> None:
        height, width = self.sides()
        if min(height, width) < 1:
            raise ArgumentError(f"statistics: size must be at least 1 × 1. Received: size={height} × {width}")

    def sides(self) -> tuple[int, int]:
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    def shape(self, q_len: int, k_len: int) -> tuple[int, ...]:
        height, width = self.sides()
        return min(height, q_len), min(width, k_len)

    def native_options(self, call: Scores) -> dict[str, Any]:
        return {"size": self.shape(*call.shape[2:])}

    def begin(self) -> None:
        n, q_len, k_len = self.part.shape
        device = self.answer.device
        self.cuts, places = _strips(q_len, self.answer.shape[1])
        self.places = [tuple(torch.from_numpy(x).to(device) for x in pair) for pair in places]
        places_of_tiles = [self._place(tile.q_lo, tile.q_hi) for tile in self.part.ranges]
        most = max((stop - start for start, stop in places_of_tiles), default=0)
        held = min(len(self.cuts) - 1, max(most, BUFFER_CELLS // (n * k_len)))
        self.first = 0  # the number of the first strip in the buffer
        self.strips = self.answer.new_zeros(n, held, k_len)

    def add(self, tile: WeightTile) -> Tensor:
        """Add a tile to the strips of rows in the buffer; return the strips of this tile, [n, strips, keys]."""
        lo, hi = self._place(tile.q_lo, tile.q_hi)
        if hi > self.first + self.strips.shape[1]:
            self.flush()
            self.first = lo
        bounds = [tile.q_lo, *self.cuts[lo + 1 : hi], tile.q_hi]
        heights = [b - a for a, b in itertools.pairwise(bounds)]
        if len(set(heights)) == 1:
            strips = self.over_rows(tile.filled.unflatten(1, (hi - lo, -1)), 2)
        else:
            strips = torch.stack([self.over_rows(rows, 1) for rows in tile.filled.split(heights, 1)], 1)
        strips = strips[..., : tile.k_hi - tile.k_lo]
        held = self.strips[:, lo - self.first : hi - self.first, tile.keys]
        self.join(held, strips, out=held)
        return strips

    def flush(self) -> None:
        """Pool the strips in the buffer over their keys, add them to the picture, and empty the buffer."""
        pooled = self.over_keys(self.strips, self.answer.shape[2])  # [n, strips, w]
        for cells, strips in self.places:
            here = (strips >= self.first) & (strips < self.first + self.strips.shape[1])
            rows = cells[here]
            self.answer[:, rows] = self.join(self.answer[:, rows], pooled[:, strips[here] - self.first])
        self.strips.zero_()

    def finish(self) -> None:
        self.flush()

    def _place(self, q_lo: int, q_hi: int) -> tuple[int, int]:
        """Return the strips (consecutive rows) that cover the rows [q_lo, q_hi): (the first, one past the last)."""
        return bisect.bisect_right(self.cuts, q_lo) - 1, bisect.bisect_left(self.cuts, q_hi)


class PooledMean(Pooled):
    """The matrix as a small picture, [B, H, h, w]: each cell is the mean of the weights it covers. See `Pooled`."""

    name = "pooled_mean"
    sentence = "The matrix as a small picture: each cell the mean of its weights."
    native = ("mean",)
    of_shares = "sum"
    over_rows = staticmethod(torch.sum)
    over_keys = staticmethod(adaptive_avg_pool1d)
    join = staticmethod(torch.add)

    def for_share(self) -> Statistic:
        return _MeanOfShare(self.size)

    def update(self, tile: WeightTile) -> None:
        tile.received = self.add(tile).sum(1)  # cheaper than from the weights

    def finish(self) -> None:
        super().finish()  # sums over the rows of each cell
        _, q_len, _ = self.part.shape
        low, high = compute_edges(q_len, self.answer.shape[1])
        self.answer /= torch.from_numpy(high - low).to(self.answer)[:, None]


class PooledMax(Pooled):
    """The matrix as a small picture, [B, H, h, w]: each cell is the largest of the weights it covers. See `Pooled`."""

    name = "pooled_max"
    sentence = "The matrix as a small picture: each cell the largest of its weights."
    native = ("greatest",)
    of_shares = "max"
    over_rows = staticmethod(torch.amax)
    over_keys = staticmethod(adaptive_max_pool1d)
    join = staticmethod(torch.maximum)

    def for_share(self) -> Statistic:
        return _MaxOfShare(self.size)

    def update(self, tile: WeightTile) -> None:
        self.add(tile)


class _OfShare(Pooled):
    """The contribution of one process's rows (`Scores.share`) to the whole sequence's small picture [B, H, h, w]."""

    def empty(self, call: Scores) -> Tensor:
        _, q_len, k_len = call.whole
        return call.q.new_zeros((*call.shape[:2], *self.shape(q_len, k_len)), dtype=call.dtype)

    def begin(self) -> None:
        share = self.part.share
        assert share is not None
        self.row_cells, self.col_cells = (
            _cells(at, share.length, count)
            for at, count in zip((share.rows, share.cols), self.answer.shape[1:], strict=True)
        )

    def update(self, tile: WeightTile) -> None:
        strips = self.answer.new_zeros(*tile.weights.shape[:2], self.answer.shape[2])
        for cell, lo, hi in _inside(self.col_cells, tile.k_lo, tile.k_hi):
            strips[..., cell] = self.over_rows(tile.weights[..., lo:hi], 2)
        for cell, lo, hi in _inside(self.row_cells, tile.q_lo, tile.q_hi):
            self.answer[:, cell] = self.join(self.answer[:, cell], self.over_rows(strips[:, lo:hi], 1))

    def finish(self) -> None:
        pass


class _MeanOfShare(_OfShare, PooledMean):
    of_shares = "sum"

    def finish(self) -> None:
        assert self.part.share is not None
        height, width = (
            torch.from_numpy(high - low).to(self.answer)
            for low, high in (compute_edges(self.part.share.length, count) for count in self.answer.shape[1:])
        )
        self.answer /= height[:, None] * width


class _MaxOfShare(_OfShare, PooledMax):
    of_shares = "max"


def compute_edges(length: int, count: int) -> tuple[Places, Places]:
    """Return, for each of `count` cells, the first position that it covers and the position after the last."""
    cells = np.arange(count)
    return cells * length // count, -(-(cells + 1) * length // count)


def _cells(at: Tensor, length: int, count: int) -> list[tuple[int, int]]:
    """Find which of the ascending positions `at` are in each of `count` cells: ranges [from, to) of indices of `at`."""
    edges = torch.from_numpy(np.stack(compute_edges(length, count), 1)).to(at)
    found: list[tuple[int, int]] = [(lo, hi) for lo, hi in torch.searchsorted(at, edges).tolist()]
    return found


def _inside(cells: list[tuple[int, int]], first: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (cell, from, to) for each cell that overlaps [first, end): the overlap, counted from `first`."""
    for cell, (lo, hi) in enumerate(cells):
        if max(lo, first) < min(hi, end):
            yield cell, max(lo, first) - first, min(hi, end) - first


@functools.lru_cache(maxsize=8)
def _strips(q_len: int, height: int) -> tuple[list[int], list[tuple[Places, Places]]]:
    """Cut rows into strips for a picture with `height` rows of cells: (the cuts, the strips of each row of cells).

    The strips are given as pairs (cells, strips): the first strip of every row of cells, then the second strip of the
    rows of cells that have a second one, and so on.
    """
    low, high = compute_edges(q_len, height)
    cuts = np.unique(np.concatenate([low, high]))
    first, end = np.searchsorted(cuts, low), np.searchsorted(cuts, high)
    several = [(np.flatnonzero(first + i < end), i) for i in range(int((end - first).max()))]
    return cuts.tolist(), [(some, first[some] + i) for some, i in several]
