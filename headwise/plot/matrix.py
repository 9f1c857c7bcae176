"""`heatmap`: the weights of one head; rows are queries, columns are keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from headwise.errors import ArgumentError
from headwise.plot.colour import FAINT, HIDDEN, Scale, check_look, choose_norm, colours, ink_on, scale_note
from headwise.plot.fonts import Letters
from headwise.plot.layout import Layout, lay_out, within
from headwise.plot.paper import (
    DPI,
    LINE,
    MASKED_NOTE,
    NOTE,
    TITLE,
    add_bar,
    add_boxes,
    add_hatched,
    check_out,
    drawing,
    frame,
    write,
)
from headwise.plot.subject import Head, Labels, Places, Subject, find_subject
from headwise.plot.ticks import name_side
from headwise.plot.weights import Weights, compute_weights, hidden_note, sink_key
from headwise.records import AttentionRecord, Seen
from headwise.records.seen import Layer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

MOST = 1000  # cells per side; for longer matrices each cell is the largest weight of a block
VALUED = 20  # values="auto" prints the weights of maps of up to so many rows and columns
VALUE, LEAST_VALUE = 6.5, 4.5  # points: font size of printed weights
VALUE_WIDTH = 1.6  # width of ".25", as a multiple of the font size
FILLED, FILLED_ELSEWHERE = 0.88, 0.76  # share of a cell's width for its number; less in a user's axes: they may shrink


def heatmap(
    what: Seen | AttentionRecord,
    *,
    layer: Layer | None = None,
    head: Head = 0,
    example: int = 0,
    rows: Places = None,
    cols: Places = None,
    scale: Scale = "linear",
    values: Literal["auto"] | bool = "auto",
    tokens: Any = None,
    row_labels: Labels = None,
    col_labels: Labels = None,
    hide_sink: bool = False,
    cmap: str | Colormap = "ember",
    vmax: float | None = None,
    title: str | None = None,
    width: float | None = None,
    ax: Axes | None = None,
    out: str | Path | None = None,
) -> Figure:
    """Draw the attention weights of one head.

        headwise.plot.heatmap(seen, layer=3, head=5, out="figure.pdf")
        headwise.plot.heatmap(record, head="mean", rows=slice(0, 20), tokens=tokens)

    The figure is as large as its names need, between the width of a column (3.3 in) and that of a page. For a matrix
    longer than 1,000, each cell is the largest of a block of weights, and the figure says so. Masked cells are hatched.

    Args:
        what: a record; or a Seen, whose tokens are the names, and one `layer` of it (number or name).
        head: a number, or "mean" = the mean of all heads.
        rows, cols: the rows and columns to draw: a slice, a range, numbers, or texts of tokens ("it:2" is the second
            "it"); None = all.
        scale: the colour scale: "linear", "root" (small weights stand out), "log" (four powers of ten).
        values: whether to print the weights in the cells; "auto" = up to 20 × 20 cells.
        tokens: names of the positions, if `what` has none, in any form that `headwise.text.as_tokens` takes.
        row_labels, col_labels: names of all rows and of all columns, such as [f"latent {i}" for i in range(8)].
        hide_sink: leave out the first key that any query may attend to, so that the colours span the weights on the
            other keys. Weights are not rescaled, and a note gives the hidden weight.
        cmap: "ember", whose lightness decreases evenly, or any colour map of matplotlib.
        vmax: the weight of the darkest colour, to compare figures; None = the largest weight shown.
        title: None = layer and head; "" = no title.
        width: the width of the figure, in inches.
        ax: draw into these axes instead of a new figure.
        out: the file to write: .png, .svg or .pdf.

    Raises:
        ArgumentError: an invalid argument, or matplotlib is not installed.
        RecordError: a layer that was not recorded.
        FileError: `out` cannot be written.
    """
    path = check_out(out)
    check_look(scale, vmax, width)
    if values not in ("auto", True, False):
        raise ArgumentError(f'values: expected "auto", True or False. Received: values={values!r}')
    subject = find_subject(what, layer, head, example, rows, cols, tokens, row_labels, col_labels)
    title = subject.title if title is None else title

    with drawing():
        letters = Letters([*subject.rows.names, *subject.cols.names, title])
        title = letters.of(title)
        short = max(len(subject.rows), len(subject.cols)) <= VALUED
        printed = values is True or (values == "auto" and short)
        layout = lay_out(subject, letters, width, scale, printed) if ax is None else within(subject, letters, ax)
        most = (min(MOST, int(layout.size[1] * DPI)), min(MOST, int(layout.size[0] * DPI)))
        weights = compute_weights(subject, most, sink_key(subject.record, subject.example) if hide_sink else None)
        notes = [*_notes(subject, weights, letters), *scale_note(scale)]
        if ax is None:
            figure, axes, bar = frame(letters, title, notes, layout.left, layout.above, layout.size, layout.bar_names)
        else:
            figure, axes = ax.figure.canvas.figure, ax
        image = _draw_cells(axes, subject, weights, choose_norm(scale, vmax or weights.top), colours(cmap))
        if ax is not None:
            bar = _surround(axes, letters, title)
        add_bar(figure, letters, image, bar)
        _name_sides(axes, subject, layout, letters)
        if ax is not None:  # names and notes move the axes, which changes how many names fit
            figure.draw_without_rendering()
            _annotate(axes, letters, notes, within(subject, letters, ax).size[0])
            figure.draw_without_rendering()
            layout = within(subject, letters, ax)
            _name_sides(axes, subject, layout, letters)
        if printed:
            share = FILLED if ax is None else FILLED_ELSEWHERE
            _print_values(axes, image, weights, layout, letters, share, insist=values is True)
        return write(figure, path, letters, title)


def _name_sides(axes: Axes, subject: Subject, layout: Layout, letters: Letters) -> None:
    name_side(axes, letters, subject.rows, layout.row_names)
    name_side(axes, letters, subject.cols, layout.col_names)


def _surround(axes: Axes, letters: Letters, title: str) -> Axes:
    """Prepare existing axes for a heat map; return axes for the colour bar."""
    axes.set_aspect("equal")
    axes.set_title(title, fontproperties=letters.properties(TITLE, letters.bold), loc="left", parse_math=False)
    return axes.inset_axes((1.03, 0.0, 0.045, 1.0))


def _annotate(axes: Axes, letters: Letters, notes: list[str], width: float) -> None:
    """Write the notes below existing axes."""
    hatched = [f"hatched: {note}" if note == MASKED_NOTE else note for note in notes]
    lines = [line for note in hatched for line in letters.wrap(note, NOTE, width)]
    for number, line in enumerate(lines):
        below = (0, -4 - number * NOTE * LINE)
        written = axes.annotate(line, (0, 0), below, xycoords="axes fraction", textcoords="offset points", va="top")
        written.set(fontproperties=letters.properties(NOTE), color=FAINT, parse_math=False)


def _notes(subject: Subject, weights: Weights, letters: Letters) -> list[str]:
    """Return the notes about the cells of a heat map: hatching, blocks, a hidden key."""
    notes = [MASKED_NOTE] if weights.masked else []
    if weights.block != (1, 1):
        notes.append(f"each cell is the largest of up to {weights.block[0]} × {weights.block[1]} weights")
    return notes + hidden_note(subject, weights, letters)


def _draw_cells(axes: Axes, subject: Subject, weights: Weights, norm: Normalize, cmap: Colormap) -> AxesImage:
    """Draw the cells. Coordinates are row and column numbers, even if a cell is a block."""
    rows, cols = len(subject.rows), len(subject.cols)
    if weights.masked:
        add_hatched(axes, [(-0.5, -0.5, cols, rows)], zorder=0)
    last_row, last_col = (size * count - 0.5 for size, count in zip(weights.block, weights.values.shape, strict=True))
    image = axes.imshow(
        np.ma.masked_invalid(weights.values),
        cmap=cmap,
        norm=norm,
        extent=(-0.5, last_col, last_row, -0.5),
        interpolation="nearest",
        aspect="auto",
        zorder=1,
    )
    if weights.hidden is not None and weights.block[1] == 1:
        add_boxes(axes, [(weights.hidden - 0.5, -0.5, 1, rows)], facecolor=HIDDEN, zorder=2)
    axes.set(xlim=(-0.5, cols - 0.5), ylim=(rows - 0.5, -0.5))
    return image


def _print_values(
    axes: Axes, image: AxesImage, weights: Weights, layout: Layout, letters: Letters, share: float, *, insist: bool
) -> None:
    """Print each weight in its cell, such as .25, if it is readable there.

    If it is not readable, nothing is printed; with `insist`, ArgumentError is raised.
    """
    width, height = layout.cell
    size = min(VALUE, width * 72 * share / VALUE_WIDTH, height * 72 * 0.7)
    if weights.block != (1, 1) or size < LEAST_VALUE:
        if insist:
            rows, cols = weights.values.shape
            raise ArgumentError(
                "values: too many weights to be readable. Use values=False, a larger width, or fewer rows and cols. "
                f"Received: {rows * weights.block[0]} × {cols * weights.block[1]}"
            )
        return
    font = letters.properties(size)
    for (row, col), weight in np.ndenumerate(weights.values):
        if not np.isnan(weight):
            ink = ink_on(image.cmap(image.norm(weight)))
            text = f"{weight:.2f}".removeprefix("0") if weight < 0.995 else "1.0"
            axes.text(col, row, text, ha="center", va="center_baseline", color=ink, fontproperties=font, zorder=3)
