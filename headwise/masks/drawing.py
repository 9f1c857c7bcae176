"""A mask as a small picture for a notebook: an SVG that takes its colours from the text around it."""

from __future__ import annotations

import html

from torch import Tensor

from headwise.masks.extent import Extent

SIDE = 160  # pixels of the longer side
MOST = 64  # the most cells of a side; in a larger mask each cell is a block


def draw_svg(written: str, codes: Tensor, size: int, about: str) -> str:
    """Return HTML that shows a mask as it is written in Python (`written`), and its picture below.

    Args:
        codes: extent codes [rows, columns] (0, 1, 2 = no, some, all pairs are allowed) of the blocks of one example and
            head.
        size: the number of queries, and of keys, of a block.
        about: the caption.
    """
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
    if size > 1:
        about += f"; a square stands for {size} × {size}, paler where only some are allowed"
    picture = f'<svg {box} role="img" aria-label="{about}" fill="currentColor">{cells}{frame}</svg>'
    below = f'<div style="font-size: 11px; opacity: 0.75">{about}</div>'
    return f'<code>{html.escape(written)}</code><div style="margin-top: 6px">{picture}</div>{below}'
