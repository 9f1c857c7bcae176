"""A tile, and a list of tiles: the parts of the Q × K matrix that must be computed.

A tile is some consecutive queries and the runs of consecutive keys that they need. Queries in no tile attend to
nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Hashable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Run(NamedTuple):
    """Consecutive keys [lo, hi) of a tile. `masked`: some pair may be forbidden, so the mask must be evaluated."""

    lo: int
    hi: int
    masked: bool


@dataclasses.dataclass(frozen=True)
class Tile:
    """Consecutive queries [q_lo, q_hi), and the runs of keys that they need: at least one run, in ascending order."""

    q_lo: int
    q_hi: int
    runs: tuple[Run, ...]
    b: int | None = None  # the example; None = all examples
    h: int | None = None  # the query head; None = all heads
    causal: bool = False  # whether it is a square on the diagonal, in which attention is causal
    shared: bool = False  # whether other tiles have more keys for the same queries

    @property
    def rows(self) -> int:
        return self.q_hi - self.q_lo

    @functools.cached_property
    def keys(self) -> int:
        """The number of keys in all runs."""
        return sum(run.hi - run.lo for run in self.runs)

    @functools.cached_property
    def masked_keys(self) -> int:
        return sum(run.hi - run.lo for run in self.runs if run.masked)

    @property
    def k_lo(self) -> int:
        return self.runs[0].lo

    @property
    def k_hi(self) -> int:
        return self.runs[-1].hi

    @property
    def span(self) -> int:
        """The number of keys from the first to the last, including those between the runs."""
        return self.k_hi - self.k_lo

    @functools.cached_property
    def shape(self) -> tuple[Hashable, ...]:
        """(the number of queries, then the ends of each run, relative to the first query, and whether it is masked)."""
        return (self.rows, *((run.lo - self.q_lo, run.hi - self.q_lo, run.masked) for run in self.runs))


class TileList:
    """A list of tiles, and the same data as arrays of integers.

    `matrices` is the number of mask matrices from which the tiles are cut: B|1 · H|1. `alike`: tiles of one `shape`
    have equal masks, so that each mask is made only once. `height` is the height of all tiles except the last of a
    matrix; None = their heights differ.
    """

    def __init__(
        self, tiles: Iterable[Tile], *, matrices: int = 1, alike: bool = False, height: int | None = None
    ) -> None:
        self._tiles = list(tiles)
        self.matrices, self.alike, self.height = matrices, alike, height
        table = _table(map(_numbers, self._tiles), 6)
        runs = _table((run for tile in self._tiles for run in tile.runs), 3)
        self.b, self.h = table[:, 0], table[:, 1]  # -1 = all
        self.rows = table[:, 2]
        self.causal, self.shared = table[:, 3] > 0, table[:, 4] > 0
        self.first = np.concatenate([[0], table[:, 5].cumsum()])  # tile t has the runs first[t] to first[t + 1]
        self.lo, self.hi, self.masked = runs[:, 0], runs[:, 1], runs[:, 2] > 0

    def __len__(self) -> int:
        return len(self._tiles)

    def __iter__(self) -> Iterator[Tile]:
        return iter(self._tiles)

    @functools.cached_property
    def keys(self) -> Ints:
        """The number of keys of each tile."""
        return self._sums(self.hi - self.lo)

    @functools.cached_property
    def masked_keys(self) -> Ints:
        """The number of keys of each tile for which the mask must be evaluated."""
        return self._sums((self.hi - self.lo) * self.masked)

    def covers(self, q_len: int) -> bool:
        """Whether the tiles that have all keys of their queries (that are not `shared`) contain every query."""
        return int(self.rows[~self.shared].sum()) == self.matrices * q_len

    def _sums(self, of_runs: Ints) -> Ints:
        return np.add.reduceat(of_runs, self.first[:-1]) if len(self) else of_runs


def _table(rows: Iterable[Iterable[int]], width: int) -> Ints:
    """Return the rows as an array [rows, width]. (np.array takes three times as long for a list of tuples.)"""
    return np.fromiter(itertools.chain.from_iterable(rows), np.int64).reshape(-1, width)


def _numbers(tile: Tile) -> tuple[int, ...]:
    b, h = (-1 if at is None else at for at in (tile.b, tile.h))
    return b, h, tile.rows, tile.causal, tile.shared, len(tile.runs)
