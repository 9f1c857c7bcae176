"""Windows and causal windows: the cost grows with length × window."""

from __future__ import annotations

from torch import Tensor

from headwise.call import AttentionCall
from headwise.kernels import tiled
from headwise.kernels.kernel import Blocks, Cost
from headwise.kernels.schedule import HEIGHTS, WIDTH, Run, Schedule, Section, Tile, cut, quickest


def refuse(call: AttentionCall) -> str | None:
    """Masks that are not one band around the diagonal, and what no tiled kernel can do."""
    if call.mask is None:
        return "the call has no mask"
    if call.mask.band() is None:
        return f"the mask is not a band (causal, window, or bands joined by &): {call.mask!r}"
    return tiled.refuse(call)


def cost(call: AttentionCall) -> Cost:
    """That of the band's tiles."""
    return schedule(call).cost(call)


def run(call: AttentionCall) -> Tensor:
    """The output, computed over the band's tiles."""
    return tiled.run(call, schedule(call))


def schedule(call: AttentionCall) -> Schedule:
    """The band cut into tiles of the height that should be quickest: low for narrow bands, high for wide ones."""
    mask = call.mask
    assert mask is not None
    band = mask.band()
    assert band is not None

    def choose() -> Schedule:
        return quickest(call, [_tiles(band, *call.shape[2:], height) for height in HEIGHTS])

    return mask.remember(("band schedule", *call.shape, call.trains), choose)


def _tiles(band: tuple[float, float], q_len: int, k_len: int, height: int) -> Schedule:
    """Tiles of `height` queries, over the keys from the first query's lowest to the last query's highest."""
    low, high = int(max(band[0], -q_len)), int(min(band[1], k_len))
    tiles: list[Tile] = []
    full, partial, columns = 0, 0, -(-k_len // WIDTH)
    for q_lo in range(0, q_len, height):
        q_hi = min(q_len, q_lo + height)
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
        tiles.extend(cut(q_lo, q_hi, runs))
        # In the regular grid of blocks: those that are touched, and those wholly inside.
        touched = -(-k_hi // WIDTH) - k_lo // WIDTH
        last = columns if inner_hi == k_len else inner_hi // WIDTH
        inside = max(0, last - -(-inner_lo // WIDTH))
        full, partial = full + inside, partial + touched - inside
    blocks = Blocks(height, WIDTH, full, partial, -(-q_len // height) * columns - full - partial)
    return Schedule((Section(None, None, tuple(tiles)),), blocks, alike=True)
