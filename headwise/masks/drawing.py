"""A mask as a small picture for a notebook: an SVG that takes its colours from the text around it."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from headwise.errors import MaskError
from headwise.masks.extent import Extent

if TYPE_CHECKING:
    from headwise.masks.mask import Mask

SIDE = 160  # pixels of the longer side
MOST = 64  # the most cells of a side; in a larger mask each cell is a block
UNSIZED = 8, 8  # queries and keys of a mask without fixed lengths


def lengths_of(mask: Mask) -> tuple[int, int]:
    """The (Q, K) of a mask's picture; (0, 0) if it has no picture, because no lengths suit all of its parts."""
    lengths = mask.natural_lengths() or UNSIZED
    try:
        mask.aligned(*lengths)
    except MaskError:
        return 0, 0
    return lengths


def drawn(mask: Mask) -> str:
    """HTML: the mask as Python code above its picture, which shows the first example and head."""
    q_len, k_len = lengths_of(mask)
    written = f"<code>{html.escape(repr(mask))}</code>"
    if not (q_len and k_len):
        return written
    size = -(-max(q_len, k_len) // MOST)
    codes = mask.blocks(q_len, k_len, size)[0, 0]
    height, width = codes.shape
    cell = SIDE / max(height, width)
    dim = {Extent.ALL: 0.75, Extent.SOME: 0.35}
    cells = "".join(
        f'<rect x="{x * cell:.2f}" y="{y * cell:.2f}" width="{cell * 0.92:.2f}" height="{cell * 0.92:.2f}" '
        f'fill-opacity="{dim[Extent(code)]}"/>'
        for y, row in enumerate(codes.tolist())
        for x, code in enumerate(row)
        if code != Extent.NONE
    )
    frame = f'<rect width="{width * cell:.2f}" height="{height * cell:.2f}" fill="none" stroke="currentColor" '
    frame += 'stroke-opacity="0.35"/>'
    box = f'width="{width * cell:.0f}" height="{height * cell:.0f}"'
    about = f"{q_len} queries (down) × {k_len} keys (across)"
    if (mask.batch or 1) > 1 or (mask.heads or 1) > 1:
        about += ", of the first example and head"
    if mask.natural_lengths() is None:
        about += ", for example"
    if size > 1:
        about += f"; a square stands for {size} × {size}, paler where only some are allowed"
    picture = f'<svg {box} role="img" aria-label="{about}" fill="currentColor">{cells}{frame}</svg>'
    below = f'<div style="font-size: 11px; opacity: 0.75">{about}</div>'
    return f'{written}<div style="margin-top: 6px">{picture}</div>{below}'
