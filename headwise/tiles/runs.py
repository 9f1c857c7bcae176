"""Makes runs (consecutive keys) from the extent codes of blocks or rows, and splits tiles where that is faster.

(An extent code says that none, some or all pairs of a block are allowed.)
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from headwise.masks import Extent, Mask
from headwise.tiles.band import make_band_runs
from headwise.tiles.tile import Run, Tile

# The number of keys in a block: small enough to follow a mask closely.
WIDTH = 64


def make_runs(codes: ArrayLike, edges: Sequence[int]) -> tuple[Run, ...]:
    """Make runs of keys from the extent codes of blocks between neighbouring `edges`; blocks of one code are joined."""
    table = np.asarray(codes)
    bounds = [*np.flatnonzero(np.diff(table, prepend=-1)).tolist(), len(table)]
    return tuple(
        Run(edges[start], edges[stop], int(table[start]) == Extent.SOME)
        for start, stop in itertools.pairwise(bounds)
        if table[start] != Extent.NONE
    )


def runs_of_rows(
    mask: Mask | None, b: int | None, h: int | None, q_lo: int, q_hi: int, first: int, past: int
) -> tuple[Run, ...]:
    """Return the runs (consecutive keys) in [first, past) that queries [q_lo, q_hi) of one example and head need."""
    if mask is None or mask.cellwise:  # answers for blocks would also evaluate every cell
        return (Run(first, past, mask is not None),) if first < past else ()
    band = mask.band()
    if band is not None:
        return make_band_runs(*band, q_lo, q_hi, first, past)
    edges = [*range(first, past, WIDTH), past]
    k = torch.tensor(edges, device="cpu")
    q = torch.tensor([q_lo, q_hi], device="cpu")
    codes = mask.rectangles(q[:1], q[1:], k[:-1], k[1:])
    return make_runs(codes[b or 0, h or 0].numpy(), edges)


def joined(tiles: Sequence[Tile]) -> Tile:
    """Join tiles of consecutive queries into one tile, which has the keys of all of them.

    A key is unmasked only if it is unmasked in all tiles.
    """
    first, last = tiles[0], tiles[-1]
    if len(tiles) == 1:
        return first
    runs = np.array([run for tile in tiles for run in tile.runs], np.int64)
    edges, places = np.unique(runs[:, :2], return_inverse=True)
    start, stop = places.reshape(-1, 2).T
    unmasked = runs[:, 2] == 0
    needed, full = (
        np.bincount(start[of], minlength=len(edges)) - np.bincount(stop[of], minlength=len(edges))
        for of in (slice(None), unmasked)
    )
    codes = (needed.cumsum() > 0).astype(int) + (full.cumsum() == len(tiles))
    return dataclasses.replace(first, q_hi=last.q_hi, runs=make_runs(codes[:-1], edges.tolist()))


def split(tile: Tile, many_keys: int) -> tuple[Tile, ...]:
    """Split a tile (queries and runs of keys) in two if many keys need no mask, so that only the others are masked."""
    if not tile.masked_keys or tile.keys <= many_keys or 2 * tile.masked_keys > tile.keys:
        return (tile,)
    parts = [tuple([run for run in tile.runs if run.masked is masked]) for masked in (False, True)]
    return tuple([Tile(tile.q_lo, tile.q_hi, part, tile.b, tile.h, tile.causal, shared=True) for part in parts])


def forbidden(mask: Mask, rows: Tensor, run: Run, b: int | None, h: int | None) -> Tensor:
    """Return which pairs of queries and keys of a run are forbidden: bool [B|1, H|1, rows, keys], True = forbidden."""
    cols = torch.arange(run.lo, run.hi, device=rows.device)
    return ~mask.cells(rows, cols, b=b, h=h)
