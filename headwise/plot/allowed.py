"""`mask`: which query may attend to which key, as a small picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from headwise import masks
from headwise.errors import ArgumentError, DtypeError
from headwise.masks import Extent, Mask
from headwise.plot.colour import FAINT, MASKED_LINES, colours
from headwise.plot.fonts import Letters
from headwise.plot.paper import DPI, EDGE, GAP, LINE, NOTE, TITLE, TITLES, add_boxes, check_out, drawing, frame, write
from headwise.plot.subject import Labels, check_place, find_labels, make_axis
from headwise.plot.ticks import fit_names, name_side
from headwise.plot.weights import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 512  # cells per side; for longer masks each cell is a block of pairs
SIDE, LEAST_SIDE = 2.4, 0.35  # inches, approximately
LARGEST_CELL, RULED = 0.22, 0.08  # inches: cells of a short mask, and the smallest cells with grid lines
FULL, PARTIAL = 0.62, 0.25  # positions in the colour map of blocks with all, and with some, of their pairs allowed


def mask(
    mask: Mask | Tensor,
    q_len: int | None = None,
    k_len: int | None = None,
    *,
    b: int = 0,
    h: int = 0,
    tokens: Any = None,
    row_labels: Labels = None,
    col_labels: Labels = None,
    title: str | None = None,
    out: str | Path | None = None,
) -> Figure:
    """Draw which query may attend to which key: rows are queries, columns are keys, allowed pairs are filled.

        headwise.plot.mask(masks.causal() & masks.window(3, 0), 8, out="mask.png")
        headwise.plot.mask(masks.documents([0, 0, 1, 1, 1]), tokens=["a", "b", "c", "d", "e"])

    The figure is small: 2 to 4 inches. For a mask longer than 512, each cell is a block, pale if only some of its pairs
    are allowed, and the figure says so; the full matrix is not built.

    Args:
        mask: a mask of `headwise.masks`, or a bool tensor [Q, K], [H, Q, K] or [B, H, Q, K], True = may attend.
        q_len, k_len: Q and K. `q_len` None = the length of the mask, if it has one; `k_len` None = `q_len`.
        b, h: the example and the head, if the mask differs between them.
        tokens: names of the positions, in any form that `headwise.text.as_tokens` takes.
        row_labels, col_labels: names of the queries, names of the keys.
        title: None = the mask as it is written, such as "window(2, 0)"; "" = no title.
        out: the file to write: .png, .svg or .pdf.

    Raises:
        ArgumentError, DtypeError, ShapeError, MaskError: an invalid argument, or matplotlib is not installed.
        FileError: `out` cannot be written.
    """
    path = check_out(out)
    name = repr(mask) if isinstance(mask, Mask) else ""
    if isinstance(mask, Tensor):
        mask = masks.from_tensor(mask)
    if not isinstance(mask, Mask):
        raise DtypeError(f"mask: expected a mask of headwise.masks or a bool tensor. Received: {type(mask).__name__}")
    q_len, k_len = _lengths(mask, q_len, k_len)
    b = check_place("b", b, mask.batch) if mask.batch else 0
    h = check_place("h", h, mask.heads) if mask.heads else 0
    if title is None:
        parts = (name, f"head {h}" if mask.heads else "", f"example {b}" if mask.batch else "")
        title = ", ".join(filter(None, parts))
    named = [(None, None)] * 2 if tokens is None else find_labels(tokens, mask.batch or 1, b, (q_len, k_len))
    rows = make_axis("rows", "query", q_len, None, row_labels, *named[0])
    cols = make_axis("cols", "key", k_len, None, col_labels, *named[1])
    block = -(-max(q_len, k_len) // MOST)
    extents = _extents(mask.to("cpu").aligned(q_len, k_len), q_len, k_len, block, b, h)

    with drawing():
        letters = Letters([*rows.names, *cols.names, title])
        title = letters.of(title)
        size = _size(*extents.shape)
        row_names = fit_names(rows, letters, size[1] / q_len, "rows")
        col_names = fit_names(cols, letters, size[0] / k_len, "cols")
        left = EDGE + TITLES * LINE / 72 + row_names.depth + GAP
        above = col_names.depth + TITLES * LINE / 72 + GAP
        notes = _notes(extents, block)
        wide = left + max(letters.width(note, NOTE) for note in notes), letters.width(title, TITLE, letters.bold) + EDGE
        figure, axes, bar = frame(*(letters, title, notes, left, above, size, 0.0), min(SIDE, max(wide) + 2 * EDGE))
        bar.remove()  # a mask has no weights
        _draw(axes, extents, block, ruled=min(size[0] / k_len, size[1] / q_len) >= RULED)
        axes.set(xlim=(-0.5, k_len - 0.5), ylim=(q_len - 0.5, -0.5))
        name_side(axes, letters, rows, row_names)
        name_side(axes, letters, cols, col_names)
        return write(figure, path, letters, title)


def _lengths(mask: Mask, q_len: int | None, k_len: int | None) -> tuple[int, int]:
    if q_len is None:
        natural = mask.natural_lengths()
        if natural is None or k_len is not None:
            raise ArgumentError(
                f"q_len: expected the number of queries, because {mask!r} fits any length. Received: q_len=None"
            )
        return natural
    k_len = q_len if k_len is None else k_len
    for name, length in (("q_len", q_len), ("k_len", k_len)):
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise ArgumentError(f"{name}: expected an integer of at least 1. Received: {name}={length!r}")
    return q_len, k_len


def _extents(mask: Mask, q_len: int, k_len: int, block: int, b: int, h: int) -> Array:
    """Return the `Extent` (0, 1, 2 = no, some, all pairs are allowed) of each cell of the picture."""
    if block == 1:
        allowed = mask.cells(torch.arange(q_len), torch.arange(k_len), b=b, h=h)[0, 0]
        return np.where(allowed.numpy(), np.int8(Extent.ALL), np.int8(Extent.NONE))
    codes = mask.blocks(q_len, k_len, block)
    return codes[b if len(codes) > 1 else 0, h if codes.shape[1] > 1 else 0].numpy()


def _size(rows: int, cols: int) -> tuple[float, float]:
    """Return the width and height of the picture in inches. Cells have a whole number of pixels, so all are equal."""
    cell = min(LARGEST_CELL, np.ceil(SIDE / max(rows, cols) * DPI) / DPI)
    width, height = (count * max(cell, np.ceil(LEAST_SIDE / count * DPI) / DPI) for count in (cols, rows))
    return float(width), float(height)


def _notes(extents: Array, block: int) -> list[str]:
    if block == 1:
        return ["filled: may attend"]
    pale = "; pale: some of them" if (extents == Extent.SOME).any() else ""
    return [f"each cell is up to {block} × {block} pairs; filled: may attend{pale}"]


def _draw(axes: Axes, extents: Array, block: int, *, ruled: bool) -> None:
    from matplotlib.colors import ListedColormap

    rows, cols = (count * block for count in extents.shape)
    ember = colours("ember")
    axes.imshow(
        extents,
        cmap=ListedColormap([(1.0, 1.0, 1.0, 1.0), ember(PARTIAL), ember(FULL)]),
        vmin=Extent.NONE,
        vmax=Extent.ALL,
        extent=(-0.5, cols - 0.5, rows - 0.5, -0.5),
        interpolation="nearest",
        aspect="auto",
    )
    if ruled:
        look: dict[str, Any] = {"color": MASKED_LINES, "linewidth": 0.4}
        axes.hlines(np.arange(1, rows) - 0.5, -0.5, cols - 0.5, **look)
        axes.vlines(np.arange(1, cols) - 0.5, -0.5, rows - 0.5, **look)
    axes.spines[:].set_visible(False)  # they would cover half of small outer cells
    edge: dict[str, Any] = {"facecolor": "none", "edgecolor": FAINT, "linewidth": 1.2, "clip_on": False}
    add_boxes(axes, [(-0.5, -0.5, cols, rows)], zorder=-1, **edge)
