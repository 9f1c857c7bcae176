"""Computes the weights of a record tile by tile. A tile has some rows, and all keys to which they may attend.

Every statistic gets a new tile while the tile is in the processor's cache. Then the next tile replaces it. So the
memory holds only the answers and a few tiles.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.call import Scores
from headwise.records.tiles import Forbidden, Tiles, forbid, spread
from headwise.softmax import EMPTY, Normaliser, finite, weigh
from headwise.tiles import Tile

# The cells of a tile, all its heads together, and the number of cells that could be computed in the time that even the
# smallest tile costs. On the CPU a tile is two buffers of 4 MB, which stay in the last cache. Half as much is as fast;
# a quarter is not, because the hundred small operations of each tile then matter more. Other devices want few and large
# operations.
CELLS, OVERHEAD = 2**20, 2**15
DEVICE_CELLS, DEVICE_OVERHEAD = 2**26, 2**23

# Heads are put together in one tile if one head alone would fill it only with more rows than this. Tiles of few rows
# follow the mask closely.
ROWS = 64

# The keys of a tile are padded to a multiple of this.
WIDTH = 64


class Unit(NamedTuple):
    """The heads of one example that are computed together: they share a mask and its tiles."""

    tiles: Tiles
    b: int
    heads: slice


def units(call: Scores) -> list[Unit]:
    """Divide all heads of all examples of a call into units (heads that are computed together); return the list."""
    batch, heads, q_len, k_len = call.shape
    on_cpu = call.q.device.type == "cpu"
    cells, overhead = (CELLS, OVERHEAD) if on_cpu else (DEVICE_CELLS, DEVICE_OVERHEAD)
    # Several heads at a time if one would make small tiles, as long as no thread waits for another at the end.
    threads = torch.get_num_threads() if on_cpu else 1
    most = 1 if call.mask is not None and call.mask.heads else min(heads, max(1, cells // (min(q_len, ROWS) * k_len)))
    together = min(range(most, 0, -1), key=lambda n: n * -(-batch * -(-heads // n) // threads))
    small = {"cells": cells // together, "overhead": overhead // together}
    tiles = Tiles(call.mask, q_len, k_len, **small, device=call.q.device)
    return [Unit(tiles, b, slice(h, min(h + together, heads))) for b in range(batch) for h in range(0, heads, together)]


def on_all_threads(work: Callable[[Unit], None], units: list[Unit], device: torch.device) -> None:
    """Call `work` with every unit, on as many threads as torch has."""
    before = torch.get_num_threads()
    threads = min(before, len(units))
    if device.type != "cpu" or threads == 1:
        for unit in units:
            work(unit)
        return
    # A head for each thread keeps its tiles in the cache of one core, so that no thread waits for another after every
    # operation. The number of torch's threads is set for each thread, but the number for new threads has to be
    # restored.
    try:
        with ThreadPoolExecutor(threads, "headwise", lambda: torch.set_num_threads(1)) as pool:
            for _ in pool.map(work, units):
                pass
    finally:
        torch.set_num_threads(before)


@dataclasses.dataclass
class WeightTile:
    """The weights of queries [q_lo, q_hi) of n heads on keys [k_lo, k_hi): the queries attend to no other keys."""

    part: Part
    q_lo: int
    q_hi: int
    k_lo: int
    k_hi: int
    scores: Tensor  #: [n, rows, width], -inf where attention is forbidden and at padded keys
    filled: Tensor  #: the weights [n, rows, width]; keys are padded with 0 to a multiple of `WIDTH`
    forbidden: list[Forbidden]

    @property
    def rows(self) -> slice:
        """The queries of the tile, as a slice."""
        return slice(self.q_lo, self.q_hi)

    @property
    def keys(self) -> slice:
        return slice(self.k_lo, self.k_hi)

    @property
    def weights(self) -> Tensor:
        """The weights [n, rows, keys]; a row that attends to nothing is 0."""
        return self.filled[..., : self.k_hi - self.k_lo]

    @functools.cached_property
    def received(self) -> Tensor:
        """The weight that each key gets from the queries of this tile, [n, keys]."""
        return self.filled.sum(1)[:, : self.k_hi - self.k_lo]

    def spread(self) -> Tensor:
        """Compute A (s - highest) of every cell, in the memory of the scores. None is above 0: sums do not cancel."""
        s, lowest = self.scores, torch.finfo(self.scores.dtype).min  # 0 · lowest is 0, 0 · -inf is not
        s -= self.part.of_keys.highest[:, self.rows, None]
        if self.part.scores.bias is None:
            s[..., self.k_hi - self.k_lo :] = lowest
            for keys, _ in self.forbidden:
                s[..., keys].clamp_(min=lowest)
        else:
            s.clamp_(min=lowest)
        s *= self.filled
        return s


class Part:
    """One pass over the rows of a unit (heads that are computed together). `shape` is (n, Q, K) for n heads.

    With `rows`, the pass uses only about so many rows, evenly spread in small groups.
    """

    def __init__(self, call: Scores, unit: Unit, rows: int | None) -> None:
        self.b, self.heads, self.mask, self._tiles = unit.b, unit.heads, call.mask, unit.tiles
        self.share = call.share
        self.scores = _one_example(call, unit.b, unit.heads)
        _, n, q_len, k_len = self.scores.shape
        self.shape = n, q_len, k_len
        self._some = rows is not None
        ranges = unit.tiles.of(unit.b, unit.heads.start)
        self.ranges = ranges if rows is None else spread(ranges, rows)  # with the queries of each tile
        cells = max((n * tile.rows * _width(tile) for tile in self.ranges), default=0)
        self._buffers = self.scores.q.new_empty((2, cells))
        self.of_keys = Normaliser.empty(self.scores.q.new_empty(n, q_len))  # of each row, without the sink

    def tiles(self) -> Iterator[WeightTile]:
        """Yield all tiles, in the order of their rows. A tile is valid until the next tile is made."""
        for tile in self.ranges:
            forbidden = self._tiles.forbidden(tile)
            s = self._compute_scores(tile, forbidden)
            yield WeightTile(self, tile.q_lo, tile.q_hi, tile.k_lo, tile.k_hi, s, self._weigh(s, tile), forbidden)

    def _compute_scores(self, tile: Tile, forbidden: list[Forbidden]) -> Tensor:
        """Compute the scores of a tile, [n, rows, width], -inf where attention is forbidden and at padded keys."""
        shape = (self.shape[0], tile.rows, _width(tile))
        s = self._buffers[0, : math.prod(shape)].view(shape)
        inner = s[..., : tile.span]
        some = self.scores.part(rows=slice(tile.q_lo, tile.q_hi), cols=slice(tile.k_lo, tile.k_hi))
        some.unmasked(out=inner[None])
        s[..., tile.span :] = EMPTY
        forbid(inner, forbidden)
        return s

    def _weigh(self, s: Tensor, tile: Tile) -> Tensor:
        """Compute the weights exp(s - lse) of a tile, 0 for an empty row, and store the normaliser of each row."""
        weights, found = weigh(s, out=self._buffers[1, : s.numel()].view(s.shape))
        for known, x in zip(self.of_keys, found, strict=True):
            known[:, tile.q_lo : tile.q_hi] = x
        if self.scores.sinks is not None:
            weights *= found.share(found.with_sinks(self.scores.sinks))[..., None]
        return weights

    def close(self) -> None:
        """Compute, after the last tile, the attributes below for all rows at once, [n, Q] each.

        `normaliser` and `lse` include the learned sink. `above` is how far the log-sum-exp is above the highest score,
        `on_keys` and `on_sink` are the weights on all keys and on the learned sink. A skipped row has NaN in `lse`.
        """
        keys, sinks = self.of_keys, self.scores.sinks
        total = self.normaliser = keys.with_sinks(sinks)
        self.lse, self.above = total.lse, finite(total.log_sum) + (total.highest - keys.highest)
        self.on_keys, self.on_sink = torch.ones_like(self.lse), torch.zeros_like(self.lse)
        if sinks is not None:
            self.on_keys, self.on_sink = keys.share(total), total.on_sinks(sinks)
        if self._some:
            left_out = torch.ones(self.shape[1], dtype=torch.bool, device=self.lse.device)
            for tile in self.ranges:
                left_out[tile.q_lo : tile.q_hi] = False
            self.lse, self.on_sink = self.lse.masked_fill(left_out, math.nan), self.on_sink.masked_fill(left_out, 0.0)


def _one_example(call: Scores, b: int, heads: slice) -> Scores:
    """Cut some heads of one example out of a call: float32 or better, no mask, and the queries already scaled."""
    part = call.part(b=slice(b, b + 1), heads=heads)
    return dataclasses.replace(part, q=part.q.to(call.dtype) * call.scale, k=part.k.to(call.dtype), scale=1.0)


def _width(tile: Tile) -> int:
    """Return the number of the tile's keys, rounded up to a multiple of `WIDTH`."""
    return -(-tile.span // WIDTH) * WIDTH
