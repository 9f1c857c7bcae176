"""A mask as the native kernels take it: a band by its two limits, any other as blocks of 64 × 64 with their bits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from headwise.masks import Extent, Mask

SIZE = 64
GROUP = 8  # rows that are computed together, about: those of a block that see nothing of it are left out
ALL, BAND, BLOCKS = range(3)  # as in headwise.h


class BlockList(NamedTuple):
    """Blocks of 64 × 64 in which a mask allows something, those of a tile of 64 queries one behind the other."""

    matrix: NDArray[np.int64]  # [B|1, H|1]: the first tile of each matrix
    tiles: NDArray[np.int64]  # [tiles + 1]: where the blocks of each begin
    blocks: NDArray[np.int64]  # [blocks, 2]: number, and its first word or -1
    words: NDArray[np.uint64]  # [masked blocks, 64]: bit j of a query's word: whether it sees key j of the block


class Sight(NamedTuple):
    """What the header's fields of the mask hold; `cells` is how many are computed of one head of one example."""

    kind: int
    cells: int
    low: int = 0
    high: int = 0
    blocks: BlockList | None = None


def sight_of(mask: Mask | None, q_len: int, k_len: int) -> Sight:
    """The mask, aligned, of calls of these lengths; remembered with it."""
    if mask is None:
        return Sight(ALL, q_len * k_len)
    return mask.remember(("native", q_len, k_len), lambda: _sight(mask, q_len, k_len))


def _sight(mask: Mask, q_len: int, k_len: int) -> Sight:
    band = mask.band()
    if band is not None:
        low, high = int(max(band[0], -q_len)), int(min(band[1], k_len))
        rows = np.arange(q_len)
        keys = np.minimum(k_len, rows + high + 1) - np.maximum(0, rows + low)
        return Sight(BAND, int(np.maximum(keys, 0).sum()), low, high)
    codes = mask.grid(q_len, k_len, SIZE, SIZE).cpu().numpy()  # [B|1, H|1, tiles, blocks]
    some, seen = codes == Extent.SOME, codes != Extent.NONE
    number = np.nonzero(seen)[-1]
    words_at = np.full(codes.shape, -1, np.int64)
    words_at[some] = np.arange(some.sum()) * SIZE
    blocks = np.stack([number, words_at[seen]], axis=1)
    tiles = np.concatenate([[0], seen.sum(-1).cumsum()])
    matrix = np.arange(codes.shape[0] * codes.shape[1]).reshape(codes.shape[:2]) * codes.shape[2]
    words = _words(mask, q_len, k_len, some)
    groups = np.count_nonzero(np.bitwise_or.reduce(words.reshape(-1, SIZE // GROUP, GROUP), axis=-1))
    cells = (int((codes == Extent.ALL).sum()) * SIZE + int(groups) * GROUP) * SIZE // (codes.shape[0] * codes.shape[1])
    return Sight(BLOCKS, cells, blocks=BlockList(matrix, tiles, blocks, words))


def _words(mask: Mask, q_len: int, k_len: int, some: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Of each block that is masked, in their order: 64 words of 64 bits, a word a query."""
    found = np.zeros((int(some.sum()), SIZE), np.uint64)
    order = np.zeros(some.shape, np.int64)
    order[some] = np.arange(some.sum())
    for tile in range(some.shape[2]):
        here = some[:, :, tile]
        columns = np.flatnonzero(here.any((0, 1)))  # blocks that are masked in some matrix
        if not len(columns):
            continue
        rows = torch.arange(tile * SIZE, min(q_len, (tile + 1) * SIZE), device=mask.device or "cpu")
        keys = torch.from_numpy((columns[:, None] * SIZE + np.arange(SIZE)).ravel()).to(rows.device)
        cells = mask.cells(rows, keys.clamp(max=k_len - 1)).cpu().numpy()
        cells = np.broadcast_to(cells, (*here.shape[:2], len(rows), len(keys)))
        words = np.packbits(cells, axis=-1, bitorder="little").view("<u8")  # [B, H, rows, columns]
        picked = here[:, :, columns]
        at = order[:, :, tile][:, :, columns][picked]
        found[at, : len(rows)] = words.transpose(0, 1, 3, 2)[picked]
    return found
