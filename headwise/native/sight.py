"""Turns a mask into the form of the native kernels: a band as two limits, any other mask as bits of 64 × 64 blocks."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from headwise.masks import Mask
from headwise.masks.block_runs import BlockRuns, joined
from headwise.masks.extent import Rectangles

SIZE = 64
TOGETHER = 512  # the number of blocks whose cells (pairs of a query and a key) are evaluated at once
GROUP = 8  # about how many rows are computed together: rows that see nothing of a block are skipped
ALL, BAND, BLOCKS = range(3)  # as in headwise.h


class RunList(NamedTuple):
    """Runs of 64 × 64 blocks in which a mask allows some pair, sorted by tiles (rows of blocks, of 64 queries each)."""

    matrix: NDArray[np.int64]  # [B|1, H|1]: the first tile of each matrix
    tiles: NDArray[np.int64]  # [tiles + 1]: where the runs of each tile begin
    runs: NDArray[np.int64]  # [runs + 1, 3]: number of blocks before the run, its first block, its first word or -1
    words: NDArray[np.uint64]  # [patterns, 64]: bit j of a query's word = the query sees key j of the block


class Sight(NamedTuple):
    """A mask as the fields of `headwise.h`; `cells`: how many pairs (query, key) are computed per example and head."""

    kind: int
    cells: int
    low: int = 0
    high: int = 0
    runs: RunList | None = None


def find_sight(mask: Mask | None, q_len: int, k_len: int) -> Sight:
    """Find the form that an aligned mask of these lengths has for native kernels; it is remembered with the mask."""
    if mask is None:
        return Sight(ALL, q_len * k_len)
    return mask.remember(("native", q_len, k_len), lambda mask: _sight(mask, q_len, k_len))


def _sight(mask: Mask, q_len: int, k_len: int) -> Sight:
    band = mask.band()
    if band is not None:
        low, high = int(max(band[0], -q_len)), int(min(band[1], k_len))
        rows = np.arange(q_len)
        keys = np.minimum(k_len, rows + high + 1) - np.maximum(0, rows + low)
        return Sight(BAND, int(np.maximum(keys, 0).sum()), low, high)
    found = mask.runs_of_blocks(q_len, k_len, SIZE)
    # Runs that are partly allowed are split into blocks, and blocks with the same words are joined again.
    count = np.where(found.some, found.hi - found.lo, 1)
    of = np.repeat(np.arange(len(count)), count)
    within = np.arange(len(of)) - np.repeat(count.cumsum() - count, count)
    row, lo, some = found.row[of], found.lo[of] + within, found.some[of]
    words, which = _words(mask, q_len, k_len, found, row[some], lo[some])
    first_word = np.full(len(of), -1, np.int64)
    first_word[some] = which * SIZE
    row, lo, hi, first_word = joined(row, lo, np.where(some, lo + 1, found.hi[of]), first_word)
    places = np.concatenate([[0], (hi - lo).cumsum()])
    runs = np.stack([places, np.append(lo, 0), np.append(first_word, 0)], axis=1)
    matrices = found.matrices[0] * found.matrices[1]
    matrix = np.arange(matrices).reshape(found.matrices) * found.rows
    tiles = np.concatenate([[0], np.bincount(row, minlength=matrices * found.rows).cumsum()])
    groups = np.bitwise_or.reduce(words.reshape(-1, SIZE // GROUP, GROUP), axis=-1)
    seen = int(np.count_nonzero(groups, axis=1)[which].sum())
    cells = (found.counts()[0] * SIZE + seen * GROUP) * SIZE // matrices
    return Sight(BLOCKS, cells, runs=RunList(matrix, tiles, runs, words))


def _words(
    mask: Mask, q_len: int, k_len: int, found: BlockRuns, row: NDArray[np.int64], col: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Evaluate the mask in 64 × 64 blocks; return (patterns [patterns, 64], the number of each block's pattern).

    A pattern has one 64-bit word per query, with one bit per key. Many blocks are equal, such as those on the diagonal:
    the mask is evaluated in only one block of each pattern.
    """
    if not len(row):
        return np.empty((0, SIZE), np.uint64), row
    matrix, tile = np.divmod(row, found.rows)
    b, h = np.divmod(matrix, found.matrices[1])
    q_lo, k_lo = (torch.from_numpy(x * SIZE) for x in (tile, col))
    r = Rectangles(q_lo, (q_lo + SIZE).clamp(max=q_len), k_lo, (k_lo + SIZE).clamp(max=k_len))
    here = b, h, np.arange(len(row))
    told = (x.expand(*found.matrices, -1)[here].numpy() for x in mask.patterns(r))
    which = np.zeros(len(row), np.int64)
    for numbers in itertools.chain(told, [matrix, (r.q_hi - q_lo).numpy(), (r.k_hi - k_lo).numpy()]):
        values, number = np.unique(numbers, return_inverse=True)
        _, at, which = np.unique(which * len(values) + number, return_index=True, return_inverse=True)
    words = np.empty((len(at), SIZE), np.uint64)
    place, device = torch.arange(SIZE, device="cpu"), mask.device or torch.device("cpu")
    for some in np.array_split(np.arange(len(at)), -(-len(at) // TOGETHER) or 1):
        one = at[some]
        b_index, h_index = (torch.from_numpy(x[one]).to(device)[:, None, None] for x in (b, h))
        rows, keys = q_lo[one][:, None, None] + place[:, None], k_lo[one][:, None, None] + place
        cells = mask.allows(
            b_index, h_index, rows.clamp(max=q_len - 1).to(device), keys.clamp(max=k_len - 1).to(device)
        )
        cells = torch.broadcast_to(cells, (len(one), SIZE, SIZE)).cpu() & (rows < q_len)
        words[some] = np.packbits(cells.numpy(), axis=-1, bitorder="little").view("<u8")[..., 0]
    return words, which
