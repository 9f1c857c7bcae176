"""What a tiled kernel will compute: tiles of the Q × K matrix, and what they cost.

A tile is some consecutive queries and the only keys they need. The kernels `banded`, `packed` and `block_sparse` differ
only in how they cut a mask into tiles; `tiled` runs them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from headwise.call import AttentionCall
from headwise.kernels.kernel import (
    Blocks,
    Cost,
    input_output_bytes,
    machine,
    matrix_flops,
    output_bytes,
)

# Keys are taken in blocks of this many: small enough to follow a mask closely.
WIDTH = 64

# Queries in a tile, and the share of the nominal speed that is reached with that many, over up to MANY_KEYS keys and
# over more (12 heads of 64 on two cores; over many keys, low tiles read each key too often).
HEIGHTS = {768: (0.95, 0.95), 256: (0.90, 0.80), 64: (0.85, 0.70)}
MANY_KEYS = 2048

# Where the scores of a tile stay in the processor's cache, two batched matrix products and a softmax are 1.1 to 1.3
# times as fast as the fused kernel (measured with 4 to 32 heads of 32 to 128 on two cores with 1 MB each).
CACHED_SCORES = 2**23
CACHED_GAIN = 1.15

# Calls into torch that a tile takes, and those that its mask takes; and seconds for each cell of the mask.
CALLS, CALLS_FOR_MASK = 2, 6
SECONDS_PER_MASK_CELL = 3e-9


class Run(NamedTuple):
    """Consecutive keys [lo, hi) of a tile. `masked`: some pair may be forbidden, so the mask must be evaluated."""

    lo: int
    hi: int
    masked: bool


@dataclasses.dataclass(frozen=True)
class Tile:
    """Queries [lo, hi) and keys they need, in order."""

    lo: int
    hi: int
    runs: tuple[Run, ...]
    causal: bool = False  # a square on the diagonal, causal within
    shared: bool = False  # other tiles hold more keys of these queries

    @functools.cached_property
    def keys(self) -> int:
        return sum(run.hi - run.lo for run in self.runs)

    @functools.cached_property
    def masked_keys(self) -> int:
        return sum(run.hi - run.lo for run in self.runs if run.masked)

    @functools.cached_property
    def shape(self) -> tuple[Hashable, ...]:
        """How many queries, and where the keys are as seen from the first."""
        return (self.hi - self.lo, *((run.lo - self.lo, run.hi - self.lo, run.masked) for run in self.runs))

    @property
    def cells(self) -> int:
        """The cells that count."""
        rows = self.hi - self.lo
        return rows * (rows + 1) // 2 if self.causal else rows * self.keys

    @property
    def cells_computed(self) -> int:
        """Of a causal square the fused kernel leaves out only whole blocks of 512 keys."""
        rows = self.hi - self.lo
        return rows * min(rows, (rows + 512) // 2) if self.causal else rows * self.keys


class Section(NamedTuple):
    """The tiles of one example and one head; None = the same for all."""

    b: int | None
    h: int | None
    tiles: tuple[Tile, ...]


@dataclasses.dataclass(frozen=True)
class Schedule:
    """All that will be computed. Queries that are in no tile attend to nothing."""

    sections: tuple[Section, ...]
    blocks: Blocks | None = None
    alike: bool = False  # tiles of one shape, seen from their first query, have one mask: it need be made only once

    def time(self, call: AttentionCall) -> float:
        """Nominal seconds in matrix products and calls into torch."""
        seconds = 0.0
        for section in self.sections:
            matrices = matrix_flops(call, matrices_of(call, section))
            for tile in section.tiles:
                few_keys, many_keys = next(HEIGHTS[h] for h in HEIGHTS if tile.hi - tile.lo >= h or h == min(HEIGHTS))
                share = few_keys if tile.keys <= MANY_KEYS else many_keys
                share *= CACHED_GAIN if not call.trains and stays_in_cache(call, section, tile) else 1.0
                calls = CALLS
                if tile.masked_keys and not self.alike:
                    calls += CALLS_FOR_MASK
                    seconds += (tile.hi - tile.lo) * tile.masked_keys * SECONDS_PER_MASK_CELL
                seconds += machine(call).time(tile.cells_computed * matrices, 0, share=share, calls=calls)
        return seconds

    def covers(self, q_len: int) -> bool:
        """Whether every query is in a tile, one that is not shared."""
        rows = [sum(tile.hi - tile.lo for tile in section.tiles if not tile.shared) for section in self.sections]
        return all(count == q_len for count in rows)

    def cells(self, call: AttentionCall) -> int:
        """The computed cells of the [B, H, Q, K] matrix."""
        return sum(matrices_of(call, section) * sum(tile.cells for tile in section.tiles) for section in self.sections)

    def cost(self, call: AttentionCall) -> Cost:
        """That of the cells, the keys the tiles read, and their masks."""
        moved, largest = input_output_bytes(call), 0
        for section in self.sections:
            for tile in section.tiles:
                keys = tile.keys * (call.k.shape[-1] + call.v.shape[-1]) * call.q.element_size() * call.k.shape[1]
                cells = (tile.hi - tile.lo) * tile.keys * call.q.element_size()
                mask = cells if tile.masked_keys else 0
                in_cache = not call.trains and stays_in_cache(call, section, tile)
                scores = 2 * cells * matrices_of(call, section) if in_cache else 0
                moved, largest = moved + keys + mask, max(largest, keys + mask + scores)
        time = self.time(call) + machine(call).time(0, input_output_bytes(call), calls=0)
        return Cost(matrix_flops(call, self.cells(call)), moved, output_bytes(call) + largest, time, self.blocks)


def quickest(call: AttentionCall, schedules: Iterable[Schedule]) -> Schedule:
    """The schedule that should take the least time."""
    return min(schedules, key=lambda schedule: schedule.time(call))


def matrices_of(call: AttentionCall, section: Section) -> int:
    """How many of the [B, H] matrices the section's tiles are cut from."""
    batch, heads = call.q.shape[:2]
    return (batch if section.b is None else 1) * (heads if section.h is None else 1)


def stays_in_cache(call: AttentionCall, section: Section, tile: Tile) -> bool:
    """Whether a tile may be computed by way of its scores: they are few, and in a dtype that is wide enough."""
    size = call.q.element_size()
    scores = matrices_of(call, section) * (tile.hi - tile.lo) * tile.keys * size
    return size >= 4 and call.sinks is None and not tile.causal and not tile.shared and scores <= CACHED_SCORES


def cut(lo: int, hi: int, runs: Iterable[Run]) -> tuple[Tile, ...]:
    """The tile of these queries and keys; two if many keys need no mask, so that only the others pay for theirs."""
    runs = tuple(run for run in runs if run.lo < run.hi)
    if not runs:
        return ()
    tile = Tile(lo, hi, runs)
    if not tile.masked_keys or tile.keys <= MANY_KEYS or 2 * tile.masked_keys > tile.keys:
        return (tile,)
    parts = [tuple(run for run in runs if run.masked is masked) for masked in (False, True)]
    return tuple(Tile(lo, hi, part, shared=True) for part in parts)


def runs_of(codes: list[int], width: int, length: int) -> tuple[Run, ...]:
    """The runs of one row of blocks from its extent codes (0 none, 1 some, 2 all); equal neighbours are joined."""
    runs = []
    for code, group in itertools.groupby(range(len(codes)), key=codes.__getitem__):
        if code:
            columns = list(group)
            runs.append(Run(columns[0] * width, min(length, (columns[-1] + 1) * width), code == 1))
    return tuple(runs)
