"""The tiles that a pass over a record's weights goes through: some rows, and the range of keys that they may attend to.

Keys before the first and after the last that a row block may attend to are never computed; within that range the mask
is evaluated only on blocks that it cuts through.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.masks import Extent, Mask

# The mask is asked about blocks of this many rows and keys.
BLOCK = 64

# Fewer rows make matrix products slow, so a tile of this many may have more cells than it should: up to as many times.
LEAST_ROWS = 16

# Where only some rows are looked at, so many that stand together: evenly spread, but few products instead of many.
GROUP = 8

# What the kept mask patterns of one plan may take. Heads that share a mask share its patterns.
PATTERN_BYTES = 2**24


@dataclasses.dataclass(frozen=True)
class Tile:
    """Queries [q_lo, q_hi) and the keys [k_lo, k_hi), outside of which none of them may attend to anything."""

    q_lo: int
    q_hi: int
    k_lo: int
    k_hi: int

    @property
    def rows(self) -> int:
        return self.q_hi - self.q_lo

    @property
    def keys(self) -> int:
        return self.k_hi - self.k_lo

    @property
    def cells(self) -> int:
        return self.rows * self.keys


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


# Keys of a tile, counted from its first, and the pairs that are forbidden there: bool [rows, keys]; None = all of them.
Forbidden = tuple[slice, Tensor | None]


class Tiles:
    """The tiles of every example and head, and their masks. May be used from several threads.

    Args:
        mask: aligned to the lengths; None = every query sees every key.
        q_len, k_len: the matrix.
        cells: the most that a tile should have (`LEAST_ROWS` over very many keys have more).
        overhead: how many cells could be computed in the time that a tile costs however small it is.
        least_keys: a tile has at least this many keys, if there are so many.
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
        least_keys: int = 1,
        device: torch.device,
    ) -> None:
        self.mask, self.q_len, self.k_len = mask, q_len, k_len
        self.cells, self.overhead, self.least_keys, self.device = cells, overhead, min(least_keys, k_len), device
        self._lists: dict[tuple[int, int], list[Tile]] = {}
        self._patterns: dict[tuple[int, int, Tile], list[Forbidden]] = {}
        self._pattern_bytes = 0
        self._lock = threading.Lock()

    def of(self, b: int, h: int) -> list[Tile]:
        """The tiles of one example and head, in the order of their rows. Rows in none attend to nothing."""
        b, h = self._variant(b, h)
        with self._lock:
            if (b, h) not in self._lists:
                k_lo, k_hi = (x[b, h].tolist() for x in self._ranges())
                self._lists[b, h] = self._cut(k_lo, k_hi)
            return self._lists[b, h]

    def forbidden(self, b: int, h: int, tile: Tile) -> list[Forbidden]:
        """Where in a tile attention is forbidden."""
        if self.mask is None:
            return []
        b, h = self._variant(b, h)
        found = self._patterns.get((b, h, tile))
        if found is None:
            found = self._look(b, h, tile)
            size = 256 + sum(pattern.nbytes for _, pattern in found if pattern is not None)
            with self._lock:
                if self._pattern_bytes + size <= PATTERN_BYTES:
                    self._pattern_bytes += size
                    self._patterns[b, h, tile] = found
        return found

    def _variant(self, b: int, h: int) -> tuple[int, int]:
        """Which of the mask's matrices an example and head have."""
        if self.mask is None:
            return 0, 0
        return b if self.mask.batch else 0, h if self.mask.heads else 0

    def _ranges(self) -> tuple[Tensor, Tensor]:
        """The first key that each strip of rows may attend to, and one past the last: int64 [B|1, H|1, strips]."""
        q_len, k_len, mask = self.q_len, self.k_len, self.mask
        strips = -(-q_len // BLOCK)
        if mask is None or not q_len or not k_len:
            k_hi = torch.full((1, 1, strips), k_len)
            return torch.zeros_like(k_hi), k_hi
        return mask.remember(("ranges", q_len, k_len), lambda: _find_ranges(mask, q_len, k_len))

    def _cut(self, k_lo: Sequence[int], k_hi: Sequence[int]) -> list[Tile]:
        joined: list[Tile] = []
        for i, (lo, hi) in enumerate(zip(k_lo, k_hi, strict=True)):
            if lo == hi:
                continue
            hi = min(self.k_len, max(hi, lo + self.least_keys))
            tile = Tile(i * BLOCK, min(self.q_len, (i + 1) * BLOCK), min(lo, hi - self.least_keys), hi)
            if joined and joined[-1].q_hi == tile.q_lo:
                last = joined[-1]
                both = Tile(last.q_lo, tile.q_hi, min(last.k_lo, tile.k_lo), max(last.k_hi, tile.k_hi))
                if both.cells <= min(self.cells, last.cells + tile.cells + self.overhead):
                    joined[-1] = both
                    continue
            joined.append(tile)
        return [part for tile in joined for part in self._split(tile)]

    def _split(self, tile: Tile) -> list[Tile]:
        """A tile with too many cells in several, of the same keys."""
        rows = tile.rows
        while rows > LEAST_ROWS and rows * tile.keys > self.cells:
            rows = -(-rows // 2)
        while rows > 1 and rows * tile.keys > LEAST_ROWS * self.cells:
            rows = -(-rows // 2)
        return [
            dataclasses.replace(tile, q_lo=q, q_hi=min(q + rows, tile.q_hi)) for q in range(tile.q_lo, tile.q_hi, rows)
        ]

    def _look(self, b: int, h: int, tile: Tile) -> list[Forbidden]:
        """Where in a tile the mask forbids: evaluated on the blocks it cuts through, if it can tell them cheaply."""
        assert self.mask is not None
        rows = torch.arange(tile.q_lo, tile.q_hi, device=self.device)
        found: list[Forbidden] = []
        for extent, keys in self._runs(b, h, tile):
            if extent == Extent.NONE:
                found.append((keys, None))
            elif extent == Extent.SOME:
                cols = torch.arange(tile.k_lo + keys.start, tile.k_lo + keys.stop, device=self.device)
                pattern = ~self.mask.cells(
                    rows, cols, b=b if self.mask.batch else None, h=h if self.mask.heads else None
                )[0, 0]
                found.append((keys, pattern))
        return found

    def _runs(self, b: int, h: int, tile: Tile) -> list[tuple[int, slice]]:
        """The tile's keys in runs of blocks with the same extent."""
        assert self.mask is not None
        width = tile.k_hi - tile.k_lo
        if self.mask.cellwise:  # to ask about blocks would evaluate every cell just as well
            return [(Extent.SOME, slice(0, width))]
        k_lo = torch.arange(tile.k_lo, tile.k_hi, BLOCK)
        k_hi = (k_lo + BLOCK).clamp(max=tile.k_hi)
        q_lo, q_hi = torch.full_like(k_lo, tile.q_lo), torch.full_like(k_lo, tile.q_hi)
        codes = self.mask.rectangles(q_lo, q_hi, k_lo, k_hi)[b, h].tolist()
        runs = []
        for code, group in itertools.groupby(range(len(codes)), key=codes.__getitem__):
            blocks = list(group)
            runs.append((code, slice(blocks[0] * BLOCK, min(width, (blocks[-1] + 1) * BLOCK))))
        return runs


def _find_ranges(mask: Mask, q_len: int, k_len: int) -> tuple[Tensor, Tensor]:
    q_lo = torch.arange(0, q_len, BLOCK)[:, None]
    k_lo = torch.arange(0, k_len, BLOCK)[None, :]
    q_hi, k_hi = (q_lo + BLOCK).clamp(max=q_len), (k_lo + BLOCK).clamp(max=k_len)
    blocks = k_lo.numel()
    step = max(1, 2**20 // (blocks * (mask.batch or 1) * (mask.heads or 1)))  # strips at once: memory stays linear
    first, end = [], []
    for i in range(0, len(q_lo), step):
        seen = mask.rectangles(q_lo[i : i + step], q_hi[i : i + step], k_lo, k_hi) != Extent.NONE
        some = seen.any(-1)
        first.append(torch.where(some, seen.to(torch.uint8).argmax(-1) * BLOCK, 0))
        last = (blocks - seen.flip(-1).to(torch.uint8).argmax(-1)) * BLOCK
        end.append(torch.where(some, last.clamp(max=k_len), 0))
    return torch.cat(first, dim=-1), torch.cat(end, dim=-1)
