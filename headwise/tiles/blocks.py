"""Cuts any mask into tiles, by asking it about blocks of pairs. A block in which no pair is allowed is in no tile."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from headwise.masks import Mask
from headwise.tiles.runs import WIDTH, joined
from headwise.tiles.tile import Run, Tile, TileList

HEIGHTS = (768, 256, 64)

# The mask is asked about strips of STRIP queries, or of LONG_STRIP queries if a length is above LONG.
STRIP, LONG_STRIP, LONG = 64, 256, 2**15


def takes(mask: Mask) -> bool:
    """Always true: every mask can be cut in this way."""
    return True


def cut(mask: Mask, q_len: int, k_len: int, height: int | None = None) -> TileList:
    """Make a tile for each `height` queries that may attend to anything, with the blocks of keys that they need."""
    strip = LONG_STRIP if max(q_len, k_len) > LONG else STRIP
    height = max(strip, (height or strip) // strip * strip)
    strips = mask.remember(("strips", q_len, k_len), lambda mask: list(_strips(mask, q_len, k_len, strip)))
    groups: dict[tuple[int | None, int | None, int], list[Tile]] = {}
    for tile in strips:
        groups.setdefault((tile.b, tile.h, tile.q_lo // height), []).append(tile)
    tiles = (_joined(group, min(q_len, (i + 1) * height), i * height) for (_, _, i), group in groups.items())
    return TileList(tiles, matrices=(mask.batch or 1) * (mask.heads or 1), height=height)


def _joined(strips: list[Tile], q_hi: int, q_lo: int) -> Tile:
    """Join strips into one tile [q_lo, q_hi). Queries in no strip attend to nothing: they are the tile's empty rows."""
    tile = joined(strips)
    missing = tile.rows != sum(strip.rows for strip in strips) or (tile.q_lo, tile.q_hi) != (q_lo, q_hi)
    runs = tuple(run._replace(masked=True) for run in tile.runs) if missing else tile.runs
    return Tile(q_lo, q_hi, runs, tile.b, tile.h)


def _strips(mask: Mask, q_len: int, k_len: int, height: int) -> Iterator[Tile]:
    """Yield a tile for each strip (row of blocks) that may attend to anything: examples and their heads one by one."""
    found = mask.runs_of_blocks(q_len, k_len, height, WIDTH)
    runs = list(
        map(Run, (found.lo * WIDTH).tolist(), np.minimum(found.hi * WIDTH, k_len).tolist(), found.some.tolist())
    )
    edges = found.first.tolist()
    for row, (first, past) in enumerate(itertools.pairwise(edges)):
        if first < past:
            matrix, j = divmod(row, found.rows)
            b, h = divmod(matrix, found.matrices[1])
            at = (b if mask.batch else None, h if mask.heads else None)
            yield Tile(j * height, min(q_len, (j + 1) * height), tuple(runs[first:past]), *at)
