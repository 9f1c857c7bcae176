"""Any mask with empty blocks: only the other blocks are computed, forward and backward."""

from __future__ import annotations

from torch import Tensor

from headwise.call import AttentionCall
from headwise.kernels import tiled
from headwise.kernels.banded import band_schedule
from headwise.kernels.kernel import Blocks, Cost
from headwise.kernels.tiled import Schedule, Section, Tile, grid_runs
from headwise.masks import Extent


def refuse(call: AttentionCall) -> str | None:
    """Calls without a mask, masks that leave no block empty, and what no tiled kernel can do."""
    if call.mask is None:
        return "the call has no mask"
    reason = tiled.refuse(call)
    if reason is None:
        blocks = schedule(call).blocks
        assert blocks is not None
        if not blocks.skipped and blocks.full + blocks.partial > 1:
            return f"the mask leaves no block of {blocks.size} × {blocks.size} empty"
    return reason


def cost(call: AttentionCall) -> Cost:
    return tiled.cost(call, schedule(call))


def run(call: AttentionCall) -> Tensor:
    return tiled.run(call, schedule(call))


def schedule(call: AttentionCall) -> Schedule:
    """One tile for every row of blocks: the blocks in which the mask allows anything."""
    assert call.mask is not None
    return call.mask.remember(("block schedule", *call.shape[2:]), lambda: _schedule(call))


def _schedule(call: AttentionCall) -> Schedule:
    assert call.mask is not None
    q_len, k_len = call.shape[2:]
    band = call.mask.band()
    if band is not None:  # known from its rows alone, without a grid of blocks
        return band_schedule(band, q_len, k_len)
    block = 64 if max(q_len, k_len) <= 2**15 else 128
    codes = call.mask.blocks(q_len, k_len, block)
    sections = []
    for b, example in enumerate(codes.tolist()):
        for h, grid in enumerate(example):
            tiles = (
                Tile(i * block, min(q_len, (i + 1) * block), runs)
                for i, row in enumerate(grid)
                if (runs := grid_runs(row, block, k_len))
            )
            sections.append(Section(b if call.mask.batch else None, h if call.mask.heads else None, tuple(tiles)))
    counted = [int((codes == extent).sum()) for extent in (Extent.ALL, Extent.SOME, Extent.NONE)]
    return Schedule(tuple(sections), Blocks(block, *counted))
