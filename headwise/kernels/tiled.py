"""Computes only allowed parts of the matrix, on the CPU: the mask is cut into tiles, which the torch engine computes.

How the mask is cut (`headwise.tiles`) decides what is skipped; `cutter` in the plan names the method. The tiles get the
height with the least estimated cost.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.kernels import exact, fused
from headwise.kernels.kernel import Blocks, Cost, input_output_bytes, machine, matrix_flops, output_bytes, refused
from headwise.tiles import CUTTERS, WIDTH, TileList, cutter_of, split
from headwise.tiles.tile import Bools, Ints
from headwise.tracing import is_forward_mode

OPTIONS = frozenset({"bias", "slopes", "sinks"})

# By the least number of queries of a tile: the shares of the nominal speed that it reaches over up to MANY_KEYS keys,
# and over more (12 heads of 64 on two cores; with many keys, tiles of few queries read each key too often).
BEST = 0.95
SHARES = {768: (BEST, BEST), 256: (0.90, 0.80), 0: (0.85, 0.70)}
MANY_KEYS = 2048

# Where the scores of a tile stay in the processor's cache, two batched matrix products and a softmax are 1.1 to 1.3
# times as fast as the fused kernel (measured with 4 to 32 heads of 32 to 128 on two cores with 1 MB each).
CACHED_SCORES = 2**23
CACHED_GAIN = 1.15

# Heights that make more tiles than this are not tried: listing the tiles takes longer than the best height saves.
MOST_TILES = 2**13

# How many calls into torch a tile takes, and how many its mask; and seconds for each cell of the mask.
CALLS, CALLS_FOR_MASK = 2, 6
SECONDS_PER_MASK_CELL = 3e-9


def refuse(call: AttentionCall) -> str | None:
    """Return the reason to refuse a call: it has no mask, or the torch engine cannot run it; None if there is none."""
    return "the call has no mask" if call.mask is None else refuse_tiles(call)


def refuse_tiles(call: AttentionCall) -> str | None:
    """Return why the torch engine (`fused.py`) cannot run a call, whatever its tiles; None if it can."""
    if not call.q.is_cpu:
        return refused("it runs on the CPU (the call is on {device})", device=call.q.device)
    if torch.is_grad_enabled() and any(x.requires_grad for x in call.biases):
        return "it gives no gradient to bias and slopes"
    if 0 in call.shape:
        return "there are no queries or no keys"
    if torch._C._are_functorch_transforms_active():
        return "torch.func cannot follow it"
    if is_forward_mode():
        return "it has no forward-mode derivatives"
    return None


def cost(call: AttentionCall) -> Cost:
    """Estimate the cost of computing the cells of the tiles, of reading their keys, and of making their masks."""
    plan = _schedule(call)
    tiles, size = plan.tiles, call.q.element_size()
    keys = tiles.keys * (call.k.shape[-1] + call.v.shape[-1]) * size * call.k.shape[1]
    mask = tiles.rows * tiles.keys * size * (tiles.masked_keys > 0)
    scores = 2 * tiles.rows * tiles.keys * size * _matrices(call, tiles) * plan.by_scores
    moved = input_output_bytes(call) + int((keys + mask).sum())
    largest = int((keys + mask + scores).max(initial=0))
    cells = np.where(tiles.causal, tiles.rows * (tiles.rows + 1) // 2, tiles.rows * tiles.keys)
    flops = matrix_flops(call, int((cells * _matrices(call, tiles)).sum()))
    time = plan.time + machine(call).time(0, input_output_bytes(call), calls=0)
    return Cost(flops, moved, output_bytes(call) + largest, time, plan.blocks, plan.cutter)


def run(call: AttentionCall) -> Tensor:
    """Compute the output [B, H, Q, E] over the tiles into which the mask is cut."""
    return run_tiles(call, _schedule(call).tiles)


def run_tiles(call: AttentionCall, tiles: TileList) -> Tensor:
    """Compute the output [B, H, Q, E] over the given tiles, and again where their log-sum-exp was not exact."""
    out, lse = fused.run(call, tiles, _by_scores(call, tiles).tolist())
    needs_lse = call.trains or bool(tiles.shared.any())
    return exact.rounded_rows(call, out, lse) if needs_lse else out


@dataclasses.dataclass(frozen=True)
class _Schedule:
    """The tiles of a call, and their estimated cost."""

    cutter: str
    tiles: TileList
    by_scores: Bools
    time: float  # nominal seconds in matrix products and calls into torch
    blocks: Blocks | None


def _schedule(call: AttentionCall) -> _Schedule:
    """Cut the mask into tiles of the height that should be quickest: low for narrow bands, high for wide ones."""
    mask, lengths = call.mask, call.shape[2:]
    assert mask is not None
    cutter = cutter_of(mask)

    def cut(height: int | None) -> TileList:
        key = "tiles", cutter, *lengths, height
        return mask.remember(key, lambda mask: CUTTERS[cutter].cut(mask, *lengths, height))

    def choose(_: object) -> _Schedule:
        # All heights that hold all queries give the same tiles: only one of these heights is tried.
        q_len = call.shape[2]
        heights = {min(height or q_len, q_len): height for height in CUTTERS[cutter].HEIGHTS}
        heights = {
            rows: height for rows, height in heights.items() if q_len <= MOST_TILES * rows or rows == max(heights)
        }
        return min((_plan_tiles(call, cutter, cut(height)) for height in heights.values()), key=lambda each: each.time)

    widths = call.q.shape[3], call.v.shape[3]
    return mask.remember(("schedule", *call.shape, *widths, call.q.dtype, call.sinks is None, call.trains), choose)


def _plan_tiles(call: AttentionCall, cutter: str, tiles: TileList) -> _Schedule:
    parts = [part for tile in tiles for part in split(tile, MANY_KEYS)]
    whole = TileList(parts, matrices=tiles.matrices, alike=tiles.alike)
    by_scores = _by_scores(call, whole)
    return _Schedule(cutter, whole, by_scores, _time(call, whole, by_scores), _blocks(tiles, *call.shape[2:]))


def _time(call: AttentionCall, tiles: TileList, by_scores: Bools) -> float:
    rows, many = tiles.rows, tiles.keys > MANY_KEYS
    share = np.select([rows >= height for height in SHARES], [np.where(many, *pair[::-1]) for pair in SHARES.values()])
    share = np.where(by_scores, share * CACHED_GAIN, share)
    # In a causal square the fused kernel skips only whole blocks of 512 keys.
    cells = np.where(tiles.causal, rows * np.minimum(rows, (rows + 512) // 2), rows * tiles.keys)
    work = (cells * _matrices(call, tiles) / share).sum()
    looked_at = (tiles.masked_keys > 0) & (not tiles.alike)
    calls = len(tiles) * CALLS + int(looked_at.sum()) * CALLS_FOR_MASK
    mask_cells = int((rows * tiles.masked_keys)[looked_at].sum())
    return machine(call).time(matrix_flops(call, int(work)), 0, calls=calls) + mask_cells * SECONDS_PER_MASK_CELL


def _by_scores(call: AttentionCall, tiles: TileList) -> Bools:
    """Return which tiles are computed from their scores: the small ones, if their log-sum-exp is not needed."""
    size = call.q.element_size()
    if size < 4 or call.sinks is not None or call.trains:
        return np.zeros(len(tiles), bool)
    scores = _matrices(call, tiles) * tiles.rows * tiles.keys * size
    return ~tiles.causal & ~tiles.shared & (scores <= CACHED_SCORES)


def _matrices(call: AttentionCall, tiles: TileList) -> Ints:
    """Return, for each tile, in how many of the B · H matrices the tile is computed."""
    batch, heads = call.q.shape[:2]
    return np.where(tiles.b < 0, batch, 1) * np.where(tiles.h < 0, heads, 1)


def _blocks(tiles: TileList, q_len: int, k_len: int) -> Blocks | None:
    """Count the blocks of `height` queries × WIDTH keys that the tiles touch; None if the tiles differ in height."""
    if tiles.height is None:
        return None
    total = tiles.matrices * -(-q_len // tiles.height) * -(-k_len // WIDTH)
    start, stop = tiles.lo // WIDTH, -(-tiles.hi // WIDTH)
    joins = np.ones(len(start), bool)
    joins[tiles.first[:-1]] = False  # the other runs may share their first block with the run before
    touched = int((stop - start).sum()) - int((joins[1:] & (start[1:] < stop[:-1])).sum())
    inside = np.where(tiles.hi == k_len, stop, tiles.hi // WIDTH) - -(-tiles.lo // WIDTH)
    full = int(np.maximum(inside, 0)[~tiles.masked].sum())
    return Blocks(tiles.height, WIDTH, full, touched - full, total - touched)
