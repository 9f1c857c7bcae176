"""The tiles in which a record's weights are computed: strips of rows, joined as long as they fit into the cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from headwise.masks import Mask
from headwise.softmax import EMPTY
from headwise.tiles import CUTTERS, Run, Tile, TileList, band, forbidden, joined

# Tiles are joined from strips of this many rows.
STRIP = 64

# Fewer rows make matrix products slow, so a tile with so many rows may exceed the number of cells by this factor.
LEAST_ROWS = 16

# If only some rows are used, they come in groups of so many: evenly spread, but few products instead of many.
GROUP = 8

# Keys of a tile, counted from its first key, and the pairs that are forbidden there: bool [rows, keys]; None = all of
# them.
Forbidden = tuple[slice, Tensor | None]


class Tiles:
    """The tiles of every example and head, and where attention is forbidden in them. May be used from several threads.

    Args:
        mask: a mask that is aligned to the lengths; None = every query sees every key.
        q_len, k_len: the size of the matrix.
        cells: the largest number of cells (queries × keys, from the first key to the last) that a tile should have
            (`LEAST_ROWS` rows over very many keys have more).
        overhead: the number of cells that could be computed in the fixed time that every tile costs.
        device: the device of the patterns of forbidden pairs.
    """

    def __init__(
        self, mask: Mask | None, q_len: int, k_len: int, *, cells: int, overhead: int, device: torch.device
    ) -> None:
        self.mask, self._device = mask, device
        strips = _strips(mask, q_len, k_len)
        of_matrix: dict[tuple[int | None, int | None], list[Tile]] = {}
        for strip in strips:
            of_matrix.setdefault((strip.b, strip.h), []).append(strip)
        self._tiles = {at: _joined(some, cells, overhead) for at, some in of_matrix.items()}
        self._alike = strips.alike
        self._known: dict[tuple[Hashable, ...], list[Forbidden]] = {}  # by shape, if tiles of one shape are equal

    def of(self, b: int, h: int) -> list[Tile]:
        """Return the tiles of one example and head, in the order of their rows. Rows in no tile attend to nothing."""
        mask = self.mask
        at = (None, None) if mask is None else (b if mask.batch else None, h if mask.heads else None)
        return self._tiles.get(at, [])

    def forbidden(self, tile: Tile) -> list[Forbidden]:
        """Return the regions of a tile in which attention is forbidden."""
        if self.mask is None:
            return []
        if self._alike and tile.shape in self._known:
            return self._known[tile.shape]
        rows = torch.arange(tile.q_lo, tile.q_hi, device=self._device)
        found = forbidden_keys(self.mask, rows, tile.runs, tile.k_lo, tile.k_hi, tile.b, tile.h)
        if self._alike:
            self._known[tile.shape] = found
        return found


def forbidden_keys(
    mask: Mask | None, rows: Tensor, runs: Sequence[Run], k_lo: int, k_hi: int, b: int | None, h: int | None
) -> list[Forbidden]:
    """Find the forbidden keys of some queries in [k_lo, k_hi): all keys between runs, and in masked runs some keys.

    A run is a range of consecutive keys that the queries may see; in a masked run, the mask decides for each pair.
    """
    found: list[Forbidden] = []
    past = k_lo
    for run in (*runs, Run(k_hi, k_hi, False)):
        if past < run.lo:
            found.append((slice(past - k_lo, run.lo - k_lo), None))
        if run.masked and mask is not None:
            found.append((slice(run.lo - k_lo, run.hi - k_lo), forbidden(mask, rows, run, b, h)[0, 0]))
        past = run.hi
    return found


def forbid(scores: Tensor, where: Sequence[Forbidden]) -> None:
    """Set scores [..., rows, keys] to -inf where they are forbidden."""
    for keys, pattern in where:
        if pattern is None:
            scores[..., keys] = EMPTY
        else:
            scores[..., keys].masked_fill_(pattern, EMPTY)


def spread(tiles: Sequence[Tile], rows: int) -> list[Tile]:
    """Cut parts out of the tiles that have about `rows` rows in total, evenly spread over all rows."""
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


def _joined(strips: Sequence[Tile], cells: int, overhead: int) -> list[Tile]:
    """Join strips (of rows) to larger tiles where that is quicker; split tiles of too many cells by rows."""
    groups: list[tuple[list[Tile], int, int]] = []  # strips, and the first and last key of all of them
    for strip in strips:
        if groups and groups[-1][0][-1].q_hi == strip.q_lo:
            before, k_lo, k_hi = groups[-1]
            lo, hi = min(k_lo, strip.k_lo), max(k_hi, strip.k_hi)
            rows = strip.q_lo - before[0].q_lo
            apart = rows * (k_hi - k_lo) + strip.rows * strip.span + overhead
            if (rows + strip.rows) * (hi - lo) <= min(cells, apart):
                groups[-1] = ([*before, strip], lo, hi)
                continue
        groups.append(([strip], strip.k_lo, strip.k_hi))
    found = []
    for tile in (joined(group) for group, _, _ in groups):
        most = min(max(LEAST_ROWS, cells // tile.span), max(1, LEAST_ROWS * cells // tile.span))
        rows = -(-tile.rows // -(-tile.rows // most))
        found += [
            dataclasses.replace(tile, q_lo=q, q_hi=min(q + rows, tile.q_hi)) for q in range(tile.q_lo, tile.q_hi, rows)
        ]
    return found


def _strips(mask: Mask | None, q_len: int, k_len: int) -> TileList:
    """Cut the rows of the matrix into strips of `STRIP` rows; return them as tiles."""
    if mask is None:
        rows = range(0, q_len, STRIP) if k_len else ()
        return TileList(Tile(i, min(i + STRIP, q_len), (Run(0, k_len, False),)) for i in rows)
    cutter = "band" if band.takes(mask) else "blocks"
    lengths = q_len, k_len
    return mask.remember(("tiles", cutter, *lengths, STRIP), lambda mask: CUTTERS[cutter].cut(mask, *lengths, STRIP))
