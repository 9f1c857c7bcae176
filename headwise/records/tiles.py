"""The tiles that a pass over a record's weights goes through: strips of rows, joined while they fit the cache."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.masks import Mask
from headwise.tiles import CUTTERS, Run, Tile, TileList, band, forbidden, joined

# Tiles are put together from strips of this many rows.
STRIP = 64

# Fewer rows make matrix products slow, so a tile of this many may have more cells than it should: up to as many times.
LEAST_ROWS = 16

# Where only some rows are looked at, so many that stand together: evenly spread, but few products instead of many.
GROUP = 8

# What the kept mask patterns of one plan may take. Heads that share a mask share its patterns.
PATTERN_BYTES = 2**24

# Keys of a tile, counted from its first, and the pairs that are forbidden there: bool [rows, keys]; None = all of them.
Forbidden = tuple[slice, Tensor | None]


class Tiles:
    """The tiles of every example and head, and their masks. May be used from several threads.

    Args:
        mask: aligned to the lengths; None = every query sees every key.
        q_len, k_len: the matrix.
        cells: the most that a tile should have, from its first key to its last (`LEAST_ROWS` over very many keys have
            more).
        overhead: how many cells could be computed in the time that a tile costs however small it is.
        device: where the patterns are wanted.
    """

    def __init__(
        self,
        mask: Mask | None,
        q_len: int,
        k_len: int,
        *,
        cells: int,
        overhead: int,
        device: torch.device,
    ) -> None:
        self.mask, self.cells, self.overhead, self.device = mask, cells, overhead, device
        self._strips = _strips(mask, q_len, k_len)
        self._lists: dict[tuple[int | None, int | None], list[Tile]] = {}
        self._patterns: dict[tuple[object, ...], list[Forbidden]] = {}
        self._pattern_bytes = 0
        self._lock = threading.Lock()

    def of(self, b: int, h: int) -> list[Tile]:
        """The tiles of one example and head, in the order of their rows. Rows in none attend to nothing."""
        mask = self.mask
        at = (None, None) if mask is None else (b if mask.batch else None, h if mask.heads else None)
        with self._lock:
            if at not in self._lists:
                self._lists[at] = self._joined([strip for strip in self._strips if (strip.b, strip.h) == at])
            return self._lists[at]

    def forbidden(self, tile: Tile) -> list[Forbidden]:
        """Where in a tile attention is forbidden."""
        if self.mask is None:
            return []
        key = tile.shape if self._strips.alike else (tile.b, tile.h, tile.q_lo, tile.q_hi)
        found = self._patterns.get(key)
        if found is None:
            found = self._look(self.mask, tile)
            size = 256 + sum(pattern.nbytes for _, pattern in found if pattern is not None)
            with self._lock:
                if self._pattern_bytes + size <= PATTERN_BYTES:
                    self._pattern_bytes += size
                    self._patterns[key] = found
        return found

    def _joined(self, strips: Sequence[Tile]) -> list[Tile]:
        groups: list[tuple[list[Tile], int, int]] = []  # strips, and the first and last key of all of them
        for strip in strips:
            if groups and groups[-1][0][-1].q_hi == strip.q_lo:
                before, k_lo, k_hi = groups[-1]
                lo, hi = min(k_lo, strip.k_lo), max(k_hi, strip.k_hi)
                rows = before[-1].q_hi - before[0].q_lo
                apart = rows * (k_hi - k_lo) + strip.rows * strip.span + self.overhead
                if (rows + strip.rows) * (hi - lo) <= min(self.cells, apart):
                    groups[-1] = ([*before, strip], lo, hi)
                    continue
            groups.append(([strip], strip.k_lo, strip.k_hi))
        return [part for group, _, _ in groups for part in self._split(joined(group))]

    def _split(self, tile: Tile) -> list[Tile]:
        """A tile with too many cells in several, of the same keys."""
        rows = tile.rows
        while rows > LEAST_ROWS and rows * tile.span > self.cells:
            rows = -(-rows // 2)
        while rows > 1 and rows * tile.span > LEAST_ROWS * self.cells:
            rows = -(-rows // 2)
        return [
            dataclasses.replace(tile, q_lo=q, q_hi=min(q + rows, tile.q_hi)) for q in range(tile.q_lo, tile.q_hi, rows)
        ]

    def _look(self, mask: Mask, tile: Tile) -> list[Forbidden]:
        """The keys between the runs, and what the mask forbids in the runs that it cuts through."""
        rows = torch.arange(tile.q_lo, tile.q_hi, device=self.device)
        found: list[Forbidden] = []
        past = tile.k_lo
        for run in tile.runs:
            if past < run.lo:
                found.append((slice(past - tile.k_lo, run.lo - tile.k_lo), None))
            if run.masked:
                pattern = forbidden(mask, rows, run, tile.b, tile.h)[0, 0]
                found.append((slice(run.lo - tile.k_lo, run.hi - tile.k_lo), pattern))
            past = run.hi
        return found


def spread(tiles: Sequence[Tile], rows: int) -> list[Tile]:
    """Parts of tiles that have about so many rows together, evenly spread over all."""
    total = sum(tile.rows for tile in tiles)
    if rows >= total:
        return list(tiles)
    groups = -(-rows // GROUP)
    size = min(GROUP, rows)
    starts = [(total * i + (total - size * groups) // 2) // groups for i in range(groups)]
    found: list[Tile] = []
    before = 0
    for tile in tiles:
        while starts and starts[0] < before + tile.rows:
            first = min(tile.q_lo + starts.pop(0) - before, tile.q_hi - size)
            first = max(first, tile.q_lo, found[-1].q_hi if found else 0)
            if first < tile.q_hi:
                found.append(dataclasses.replace(tile, q_lo=first, q_hi=min(tile.q_hi, first + size)))
        before += tile.rows
    return found


def _strips(mask: Mask | None, q_len: int, k_len: int) -> TileList:
    """The matrix in strips of `STRIP` rows."""
    if mask is None:
        rows = range(0, q_len, STRIP) if k_len else ()
        return TileList(Tile(i, min(i + STRIP, q_len), (Run(0, k_len, False),)) for i in rows)
    cutter = "band" if band.takes(mask) else "blocks"
    return mask.remember(("tiles", cutter, q_len, k_len, STRIP), lambda: CUTTERS[cutter].cut(mask, q_len, k_len, STRIP))
