"""`surface3d`: the weights of one head as a 3-D surface."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from headwise.errors import ArgumentError
from headwise.plot.colour import FAINT, INK, MASKED, Scale, check_look, choose_norm, colours, scale_note
from headwise.plot.fonts import Letters
from headwise.plot.paper import (
    BAR,
    BAR_NAMES,
    EDGE,
    GAP,
    MASKED_NOTE,
    NOTE,
    TITLES,
    add_bar,
    check_out,
    drawing,
    frame,
    write,
)
from headwise.plot.subject import Axis, Head, Labels, Places, find_subject
from headwise.plot.ticks import PITCH, ordinal
from headwise.plot.weights import Array, Weights, compute_weights
from headwise.records import AttentionRecord, Seen
from headwise.records.seen import Layer

if TYPE_CHECKING:
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.figure import Figure
    from mpl_toolkits.mplot3d import Axes3D

MOST = 64  # cells per side; for longer matrices each cell is the largest weight of a block
OUTLINED = 40  # the steps of the surface are outlined if there are at most this many per side
WIDTH, HEIGHT = 5.0, 0.76  # the width in inches; the height as a share of the width
LONGEST = 0.45  # inches; longer names are cut


def surface3d(
    what: Seen | AttentionRecord,
    *,
    layer: Layer | None = None,
    head: Head = 0,
    example: int = 0,
    rows: Places = None,
    cols: Places = None,
    scale: Scale = "linear",
    tokens: Any = None,
    row_labels: Labels = None,
    col_labels: Labels = None,
    cmap: str | Colormap = "ember",
    vmax: float | None = None,
    title: str | None = None,
    width: float | None = None,
    out: str | Path | None = None,
) -> Figure:
    """Draw the attention weights of one head as a surface over queries and keys, with one step per weight.

        headwise.plot.surface3d(seen, layer=3, head=5, out="surface.pdf")

    For a matrix longer than 64, each step is the largest of a block of weights. Masked cells are grey ground. `scale`
    applies to the colours; the height is the weight itself.

    Args:
        what, layer, head, example, rows, cols, scale, tokens, row_labels, col_labels: as in `heatmap`.
        cmap, vmax, title, width, out: as in `heatmap`.

    Raises:
        ArgumentError, RecordError, FileError: see `heatmap`.
    """
    path = check_out(out)
    check_look(scale, vmax, width)
    subject = find_subject(what, layer, head, example, rows, cols, tokens, row_labels, col_labels)
    title = subject.title if title is None else title
    around = EDGE + GAP + BAR + BAR_NAMES[scale]
    side = (width or WIDTH) - around
    if side < 1:
        raise ArgumentError(
            f"width: expected at least {around + 1:.1f} inches for a surface. Received: width={width:g}"
        )
    with drawing():
        from matplotlib.cm import ScalarMappable

        letters = Letters([*subject.rows.names, *subject.cols.names, title])
        title = letters.of(title)
        weights = compute_weights(subject, (MOST, MOST))
        notes = [f"grey: {MASKED_NOTE}"] if weights.masked else []
        if weights.block != (1, 1):
            notes.append(f"each step is the largest of up to {weights.block[0]} × {weights.block[1]} weights")
        notes += scale_note(scale)
        figure, flat, bar = frame(letters, title, notes, EDGE, 0.0, (side, HEIGHT * side), BAR_NAMES[scale])
        box, inches = flat.get_position(), figure.get_figheight()
        flat.remove()
        # A 3-D scene is drawn in a square and leaves its top and bottom empty.
        middle, tall = box.y0 + 0.56 * box.height, side / inches
        square = (box.x0 - 0.04 * box.width, middle - tall / 2, box.width, tall)
        axes = figure.add_axes(square, projection="3d", computed_zorder=False)
        norm = choose_norm(scale, vmax or weights.top)
        _set_scene(axes, letters, weights)
        _draw_steps(axes, weights, norm, colours(cmap))
        _name_edge(axes, letters, subject.cols, weights.block[1], "front")
        _name_edge(axes, letters, subject.rows, weights.block[0], "right")
        add_bar(figure, letters, ScalarMappable(norm, colours(cmap)), bar)
        return write(figure, path, letters, title)


def list_faces(values: Array, *, towards: tuple[float, float]) -> Iterator[tuple[int, int, Array]]:
    """Yield the visible faces of a surface with one flat step per cell, from the far side to the near side.

    In a parallel projection this order is exact: no face hides a later one. matplotlib's own sorting, by the middle of
    each face, is not exact, and draws steps through each other.

    Args:
        values: the heights [rows, cols]; NaN = on the ground.
        towards: (x, y) from the scene to the eye, with columns along x and rows along y.

    Yields:
        (row, column, corners [4, 3]): the walls of a step, as far as the next step towards the eye does not hide them,
        then its top.
    """
    rows, cols = values.shape
    z = np.pad(np.nan_to_num(values), 1)  # the ground around
    right, near = (1 if part > 0 else -1 for part in towards)
    for i in range(rows)[::near]:
        for j in range(cols)[::right]:
            height, beside, before = z[i + 1, j + 1], z[i + 1, j + 1 + right], z[i + 1 + near, j + 1]
            (x0, x1), (y0, y1) = (j - 0.5, j + 0.5), (i - 0.5, i + 0.5)
            x, y = (x1 if right > 0 else x0), (y1 if near > 0 else y0)
            if height > beside:
                yield i, j, np.array([(x, y0, beside), (x, y1, beside), (x, y1, height), (x, y0, height)])
            if height > before:
                yield i, j, np.array([(x0, y, before), (x1, y, before), (x1, y, height), (x0, y, height)])
            yield i, j, np.array([(x0, y0, height), (x1, y0, height), (x1, y1, height), (x0, y1, height)])


def _draw_steps(axes: Axes3D, weights: Weights, norm: Normalize, cmap: Colormap) -> None:
    """Draw the faces in their order, projected here, because the view of a figure on paper does not change."""
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgb, to_rgba
    from mpl_toolkits.mplot3d.proj3d import proj_transform

    azimuth = np.deg2rad(axes.azim)
    across, down = (np.sign(np.subtract(*limits)) for limits in (axes.get_xlim()[::-1], axes.get_ylim()[::-1]))
    towards = (np.cos(azimuth) * across, np.sin(azimuth) * down)
    faces = list(list_faces(weights.values, towards=towards))
    corners = np.stack([face for _, _, face in faces])
    x, y, _ = proj_transform(*corners.reshape(-1, 3).T, axes.get_proj())
    colour = np.array(cmap(norm(np.nan_to_num(weights.values))))
    colour[np.isnan(weights.values)] = to_rgba(MASKED)
    shade = np.where(
        np.ptp(corners[:, :, 2], axis=1) > 0, np.where(np.ptp(corners[:, :, 0], axis=1) > 0, 0.9, 0.8), 1.0
    )
    rows, cols = (np.array([place[side] for place in faces]) for side in (0, 1))
    filled = colour[rows, cols]
    filled[:, :3] *= shade[:, None]
    outlined = max(weights.values.shape) <= OUTLINED

    class Painted(PolyCollection):
        """Faces that are already sorted, and projected to the plane of the paper."""

        def do_3d_projection(self) -> float:
            return 0.0

    drawn = Painted(
        list(np.stack([x, y], axis=-1).reshape(-1, 4, 2)),
        facecolors=filled,
        edgecolors=(*to_rgb(INK), 0.25) if outlined else filled,  # the same colour closes the gaps between faces
        linewidths=0.25 if outlined else 0.1,
        zorder=1,
    )
    Axes.add_collection(axes, drawn, autolim=False)  # not that of Axes3D, which would project and sort again


def _set_scene(axes: Axes3D, letters: Letters, weights: Weights) -> None:
    """Set axes and view. The first query is at the back, like at the top of a heat map."""
    from matplotlib.ticker import MaxNLocator

    rows, cols = weights.values.shape
    axes.set(xlim=(-0.5, cols - 0.5), ylim=(rows - 0.5, -0.5), zlim=(0, weights.top or 1))
    longest = max(rows, cols)
    axes.set_box_aspect((max(0.4, cols / longest), max(0.4, rows / longest), 0.5), zoom=0.8)
    axes.set_proj_type("ortho")
    axes.view_init(38, -58)
    axes.apply_aspect()
    axes.patch.set_alpha(0)
    axes.set(xticks=[], yticks=[])
    axes.zaxis.set_ticks_position("lower")
    axes.zaxis.set_tick_params(labelsize=NOTE, labelcolor=INK, pad=-2, width=0.4)
    axes.zaxis.set_major_locator(MaxNLocator(4, prune="lower"))  # 0 would overlap the first name
    for label in axes.get_zticklabels():
        label.set_fontproperties(letters.properties(NOTE))
    for axis in (axes.xaxis, axes.yaxis, axes.zaxis):
        axis.line.set(color=FAINT, linewidth=0.5)
        axis.pane.set(facecolor="none", edgecolor=FAINT, linewidth=0.3)


def _name_edge(axes: Axes3D, letters: Letters, axis: Axis, block: int, edge: Literal["front", "right"]) -> None:
    """Write names along the front or right edge, pointing outwards; every n-th, so that they do not overlap."""
    rows, cols = axes.get_ylim()[0] + 0.5, axes.get_xlim()[1] + 0.5
    count, depth = (cols, rows) if edge == "front" else (rows, cols)
    along, outwards = ((1, 0, 0), (0, 1, 0)) if edge == "front" else ((0, 1, 0), (1, 0, 0))
    room, line = (
        _inches(axes, edge, direction) for direction in (along, outwards)
    )  # inches of a cell in both directions
    step = next(n for n in (1, 2, 5, 10, 20, 50, 100) if n * room * 72 >= NOTE * PITCH)
    names = {place: axis.name(axis.places[place * block]) for place in range(0, int(count), step)}
    names = {place: letters.cut(letters.of(name), NOTE, LONGEST) for place, name in names.items()}

    def write_at(place: float, away: float, text: str, size: float, direction: tuple[int, int, int], ha: str) -> None:
        outside = depth - 0.5 + away / line
        x, y = (place, outside) if edge == "front" else (outside, place)
        written = axes.text(x, y, 0, text, direction, ha=ha, va="center", color=INK)
        written.set(fontproperties=letters.properties(size), parse_math=False, rotation_mode="anchor")

    for place, name in names.items():
        write_at(place, GAP / 2, name, NOTE, outwards, "right" if edge == "front" else "left")
    beyond = GAP + max(letters.width(name, NOTE) for name in names.values()) + TITLES / 72
    every = "" if step * block == 1 else f" (every {ordinal(step * block)} named)"
    write_at((count - 1) / 2, beyond, axis.word + every, TITLES, along, "center")


def _inches(axes: Axes3D, edge: str, direction: tuple[int, int, int]) -> float:
    """Return the projected length, in inches, of one cell at the middle of an edge."""
    from mpl_toolkits.mplot3d.proj3d import proj_transform

    rows, cols = axes.get_ylim()[0], axes.get_xlim()[1]
    start = np.array([cols / 2, rows, 0] if edge == "front" else [cols, rows / 2, 0])
    points = [axes.transData.transform(proj_transform(*x, axes.get_proj())[:2]) for x in (start, start + direction)]
    return float(np.hypot(*(points[1] - points[0]))) / axes.figure.dpi
