"""Cuts windows, causal masks, and these joined by `&`, by the limits of their band, without evaluating the mask."""

from __future__ import annotations

from headwise.masks import Mask
from headwise.tiles.tile import Run, Tile, TileList

HEIGHTS = (768, 256, 64)


def takes(mask: Mask) -> bool:
    """Whether the mask is one band around the diagonal."""
    return mask.band() is not None


def cut(mask: Mask, q_len: int, k_len: int, height: int | None = None) -> TileList:
    """Cut tiles of `height` queries, with the keys from the first query's lowest key to the last query's highest."""
    band, height = mask.band(), height or min(HEIGHTS)
    assert band is not None
    low, high = int(max(band[0], -q_len)), int(min(band[1], k_len))
    tiles = []
    for q_lo in range(0, q_len, height):
        q_hi = min(q_len, q_lo + height)
        if runs := make_band_runs(low, high, q_lo, q_hi, 0, k_len):
            tiles.append(Tile(q_lo, q_hi, runs))
    return TileList(tiles, alike=True, height=height)


def make_band_runs(low: float, high: float, q_lo: int, q_hi: int, first: int, past: int) -> tuple[Run, ...]:
    """Return the runs of keys in [first, past) that the queries [q_lo, q_hi) see: low <= key - query <= high."""
    k_lo, k_hi = int(max(first, q_lo + low)), int(min(past, q_hi + high))
    # The keys that every query sees; the mask cuts the keys to their left and right.
    inner_lo, inner_hi = int(max(k_lo, q_hi - 1 + low)), int(min(k_hi, q_lo + high + 1))
    if inner_lo >= inner_hi:
        inner_lo = inner_hi = k_lo
    runs = (Run(k_lo, inner_lo, True), Run(inner_lo, inner_hi, False), Run(inner_hi, k_hi, True))
    return tuple([run for run in runs if run.lo < run.hi]) if k_lo < k_hi else ()
