"""A tile, and a list of them: what is computed of the Q × K matrix.

A tile is some consecutive queries and the runs of keys that they need. The list is plain integers in compressed rows
(CSR): tile t has the runs `first[t]` to `first[t + 1]`. Queries that are in no tile attend to nothing.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Iterable, Iterator, Sequence
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
    """Queries [q_lo, q_hi), and the runs of keys that they need, in order, at least one."""

    q_lo: int
    q_hi: int
    runs: tuple[Run, ...]
    b: int | None = None  # the example; None = all of them
    h: int | None = None  # the query head; None = all of them
    causal: bool = False  # a square on the diagonal, causal within
    shared: bool = False  # other tiles hold more keys of these queries

    @property
    def rows(self) -> int:
        return self.q_hi - self.q_lo

    @functools.cached_property
    def keys(self) -> int:
        """The keys of all runs."""
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
        """The keys from the first to the last, those between the runs included."""
        return self.k_hi - self.k_lo

    @functools.cached_property
    def shape(self) -> tuple[Hashable, ...]:
        """How many queries, and where the keys are as seen from the first."""
        return (self.rows, *((run.lo - self.q_lo, run.hi - self.q_lo, run.masked) for run in self.runs))


@dataclasses.dataclass(frozen=True, eq=False)
class TileList:
    """Tiles as integers; `for tile in tiles` makes objects of them.

    `matrices` is how many matrices of the mask they are cut from: B|1 · H|1. `alike`: tiles of one `shape` have one
    mask, so it need be made only once. `height`: that of all tiles but the last of a matrix; None = they differ.
    """

    b: Ints  # [tiles], -1 = all examples
    h: Ints  # [tiles], -1 = all heads
    q_lo: Ints  # [tiles]
    q_hi: Ints  # [tiles]
    causal: Bools  # [tiles]
    shared: Bools  # [tiles]
    first: Ints  # [tiles + 1]
    lo: Ints  # [runs]
    hi: Ints  # [runs]
    masked: Bools  # [runs]
    matrices: int
    alike: bool = False
    height: int | None = None

    @classmethod
    def of(
        cls, tiles: Iterable[Tile], *, matrices: int = 1, alike: bool = False, height: int | None = None
    ) -> TileList:
        """The list of these tiles."""
        tiles = list(tiles)
        runs = [run for tile in tiles for run in tile.runs]
        table = np.array([(*_place(tile), len(tile.runs)) for tile in tiles], np.int64).reshape(-1, 7)
        lo, hi, masked = np.array(runs, np.int64).reshape(-1, 3).T
        b, h, q_lo, q_hi, causal, shared, counts = table.T
        first = np.concatenate([[0], counts.cumsum()])
        made = cls(
            *(b, h, q_lo, q_hi, causal > 0, shared > 0, first, lo, hi, masked > 0),
            matrices=matrices,
            alike=alike,
            height=height,
        )
        vars(made)["_tiles"] = tiles
        return made

    def __len__(self) -> int:
        return len(self.q_lo)

    def __iter__(self) -> Iterator[Tile]:
        return iter(self._tiles)

    @functools.cached_property
    def _tiles(self) -> Sequence[Tile]:
        runs = list(map(Run, self.lo.tolist(), self.hi.tolist(), self.masked.tolist()))
        columns = (self.b, self.h, self.q_lo, self.q_hi, self.causal, self.shared, self.first, self.first[1:])
        return [
            Tile(q_lo, q_hi, tuple(runs[i:j]), None if b < 0 else b, None if h < 0 else h, causal, shared)
            for b, h, q_lo, q_hi, causal, shared, i, j in zip(*(column.tolist() for column in columns), strict=False)
        ]

    @functools.cached_property
    def rows(self) -> Ints:
        """The queries of each tile."""
        return self.q_hi - self.q_lo

    @functools.cached_property
    def keys(self) -> Ints:
        """The keys of each tile."""
        return self._sums(self.hi - self.lo)

    @functools.cached_property
    def masked_keys(self) -> Ints:
        """The keys of each tile whose mask must be evaluated."""
        return self._sums((self.hi - self.lo) * self.masked)

    def covers(self, q_len: int) -> bool:
        """Whether every query is in a tile, one that is not shared."""
        return int(self.rows[~self.shared].sum()) == self.matrices * q_len

    def _sums(self, of_runs: Ints) -> Ints:
        return np.add.reduceat(of_runs, self.first[:-1]) if len(self) else of_runs


def _place(tile: Tile) -> tuple[int, ...]:
    b, h = (-1 if at is None else at for at in (tile.b, tile.h))
    return b, h, tile.q_lo, tile.q_hi, tile.causal, tile.shared
