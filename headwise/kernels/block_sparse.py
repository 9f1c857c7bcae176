"""Any mask: the blocks in which it allows nothing are not computed, forward or backward, and no Q × K mask is built."""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.kernels import banded, tiled
from headwise.kernels.kernel import Blocks, Cost
from headwise.kernels.schedule import HEIGHTS, WIDTH, Schedule, Section, cut, quickest, runs_of
from headwise.masks import Extent


def refuse(call: AttentionCall) -> str | None:
    """Calls without a mask, and what no tiled kernel can do."""
    return "the call has no mask" if call.mask is None else tiled.refuse(call)


def cost(call: AttentionCall) -> Cost:
    """That of the blocks that are not empty."""
    return schedule(call).cost(call)


def run(call: AttentionCall) -> Tensor:
    """The output, computed over the blocks that are not empty."""
    return tiled.run(call, schedule(call))


def schedule(call: AttentionCall) -> Schedule:
    """The blocks that are not empty, joined to tiles of the height that should be quickest."""
    mask = call.mask
    assert mask is not None
    if mask.band() is not None:  # known from its rows alone, without a grid of blocks
        return banded.schedule(call)

    def choose() -> Schedule:
        lowest = min(HEIGHTS) if max(call.shape[2:]) <= 2**15 else 256  # for long inputs a coarser grid
        codes = mask.blocks(*call.shape[2:], lowest, WIDTH)
        return quickest(call, [_tiles(call, codes, lowest, height) for height in HEIGHTS if height >= lowest])

    return mask.remember(("block schedule", *call.shape, call.trains), choose)


def _tiles(call: AttentionCall, codes: Tensor, lowest: int, height: int) -> Schedule:
    """One tile for each row of blocks of this height, from the codes of rows of the lowest height."""
    assert call.mask is not None
    q_len, k_len = call.shape[2:]
    codes = _joined_rows(codes, height // lowest)
    sections = []
    for b, example in enumerate(codes.tolist()):
        for h, grid in enumerate(example):
            tiles = [
                tile
                for i, row in enumerate(grid)
                for tile in cut(i * height, min(q_len, (i + 1) * height), runs_of(row, WIDTH, k_len))
            ]
            sections.append(Section(b if call.mask.batch else None, h if call.mask.heads else None, tuple(tiles)))
    return Schedule(tuple(sections), Blocks.of(codes, height, WIDTH))


def _joined_rows(codes: Tensor, n: int) -> Tensor:
    """The extent codes of n rows of blocks as one: ALL or NONE only if all of them are."""
    lowest = torch.stack([rows.amin(-2) for rows in codes.split(n, dim=-2)], dim=-2)
    highest = torch.stack([rows.amax(-2) for rows in codes.split(n, dim=-2)], dim=-2)
    return torch.where(lowest == highest, lowest, Extent.SOME)
