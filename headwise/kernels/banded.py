"""Windows and causal windows: the cost grows with length × window."""

from __future__ import annotations

from torch import Tensor

from headwise.call import AttentionCall
from headwise.kernels import tiled
from headwise.kernels.kernel import Blocks, Cost
from headwise.kernels.tiled import Run, Schedule, Section, Tile

# Small tiles waste little at a band's slanted edges; the fused kernel is nearly as fast on 64 queries as on 1024.
BLOCK = 64


def refuse(call: AttentionCall) -> str | None:
    """Masks that are not one band around the diagonal, and what no tiled kernel can do."""
    if call.mask is None:
        return "the call has no mask"
    if call.mask.band() is None:
        return f"the mask is not a band (causal, window, or bands joined by &): {call.mask!r}"
    return tiled.refuse(call)


def cost(call: AttentionCall) -> Cost:
    return tiled.cost(call, schedule(call))


def run(call: AttentionCall) -> Tensor:
    return tiled.run(call, schedule(call))


def schedule(call: AttentionCall) -> Schedule:
    """The tiles of the call's band."""
    mask = call.mask
    assert mask is not None
    band = mask.band()
    assert band is not None
    return mask.remember(("band schedule", *call.shape[2:]), lambda: band_schedule(band, *call.shape[2:]))


def band_schedule(band: tuple[float, float], q_len: int, k_len: int) -> Schedule:
    """One tile for every 64 queries, over the keys from the first query's lowest to the last query's highest."""
    low, high = (max(-q_len, int(max(band[0], -q_len))), int(min(band[1], k_len)))
    tiles, full, partial, columns = [], 0, 0, -(-k_len // BLOCK)
    for q_lo in range(0, q_len, BLOCK):
        q_hi = min(q_len, q_lo + BLOCK)
        k_lo, k_hi = max(0, q_lo + low), min(k_len, q_hi + high)
        if k_lo >= k_hi:
            continue
        # The keys that every query of the tile sees; what is left and right of them is cut by the mask.
        inner_lo, inner_hi = max(k_lo, q_hi - 1 + low), min(k_hi, q_lo + high + 1)
        if inner_lo < inner_hi:
            runs = [Run(k_lo, inner_lo, True), Run(inner_lo, inner_hi, False), Run(inner_hi, k_hi, True)]
        else:
            inner_lo = inner_hi = k_lo
            runs = [Run(k_lo, k_hi, True)]
        tiles.append(Tile(q_lo, q_hi, tuple(run for run in runs if run.lo < run.hi)))
        # In the regular grid of blocks: those that are touched, and those wholly inside.
        touched = -(-k_hi // BLOCK) - k_lo // BLOCK
        last = columns if inner_hi == k_len else inner_hi // BLOCK
        inside = max(0, last - -(-inner_lo // BLOCK))
        full, partial = full + inside, partial + touched - inside
    rows = -(-q_len // BLOCK)
    return Schedule((Section(None, None, tuple(tiles)),), Blocks(BLOCK, full, partial, rows * columns - full - partial))
