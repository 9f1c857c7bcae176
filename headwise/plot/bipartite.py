"""`lines`: queries and keys in two columns, and every weight as a line between them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headwise.errors import ArgumentError
from headwise.plot.colour import FAINT, INK, Scale, check_look, choose_norm, scale_note
from headwise.plot.fonts import Letters
from headwise.plot.paper import (
    COLUMN,
    EDGE,
    GAP,
    LABEL,
    LINE,
    NOTE,
    PAGE,
    TITLE,
    TITLES,
    blank,
    check_out,
    drawing,
    place_axes,
    write,
    write_lines,
    write_notes,
)
from headwise.plot.subject import Axis, Head, Labels, Places, Subject, check_place, find_subject
from headwise.plot.weights import Array, compute_weights, hidden_note, sink_key
from headwise.records import AttentionRecord, Seen
from headwise.records.seen import Layer
from headwise.text.places import Place, find_position

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PITCH = 1.6 * LABEL / 72  # inches from one token to the next
MOST_TOKENS = 500  # in a column
MOST_LINES = 5000
LEAST = 0.02  # below this place on the scale no line is drawn
BETWEEN = 0.42  # at least this share of the width is between the columns
NUMBER = 0.36  # inches for a printed weight

# The colours of the page for heads: a head has the colour of its number.
COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#3a9bdc"),
    *("#7a7a7a", "#7a3e9d", "#8a4b1f", "#b3122a", "#4c6b00", "#1c4e80"),
)


def lines(
    what: Seen | AttentionRecord,
    *,
    layer: Layer | None = None,
    head: Head | Sequence[int] = 0,
    row: Place | None = None,
    col: Place | None = None,
    example: int = 0,
    rows: Places = None,
    cols: Places = None,
    scale: Scale = "linear",
    tokens: Any = None,
    row_labels: Labels = None,
    col_labels: Labels = None,
    hide_sink: bool = False,
    vmax: float | None = None,
    title: str | None = None,
    width: float | None = None,
    out: str | Path | None = None,
) -> Figure:
    """Draw the weights of one head, or of several, as lines from a column of queries to a column of keys.

        headwise.plot.lines(seen, layer=3, head=5, out="lines.pdf")
        headwise.plot.lines(seen, layer=3, head=[1, 5], row="it")        # only what "it" attends to, in two colours

    A line is as dark and as wide as its weight on the scale; a note gives the weight of the strongest one. Weights
    below a fiftieth of the scale have no line. Of more than 5,000 lines the strongest are drawn, and a note says so.

    Args:
        head: a number, "mean" = the mean of all heads, or several numbers: each head has its colour.
        row, col: draw only the lines of this query, or to this key, and print their weights (the mean of the heads).
        what, layer, example, rows, cols, scale, tokens, row_labels, col_labels: as in `heatmap`.
        hide_sink, vmax, title, width, out: as in `heatmap`; `vmax` is the weight of the darkest line.

    Raises:
        ArgumentError, RecordError, FileError: see `heatmap`; also for more than 500 queries or keys.
    """
    path = check_out(out)
    check_look(scale, vmax, width)
    chosen: list[Head] = [head] if isinstance(head, (int, str)) else list(head)
    if not chosen:
        raise ArgumentError("head: expected at least one head. Received: head=[]")
    given = example, rows, cols, tokens, row_labels, col_labels
    subjects = [find_subject(what, layer, each, *given) for each in chosen]
    subject = subjects[0]
    if (most := max(len(subject.rows), len(subject.cols))) > MOST_TOKENS:
        raise ArgumentError(
            f"lines: expected at most {MOST_TOKENS} queries and keys. Received: {most:,}. "
            "Choose a part: rows=slice(0, 100), cols=slice(0, 100)"
        )
    if title is None:
        title = (
            subject.title if len(chosen) == 1 else f"{subject.layer}, heads {', '.join(map(str, chosen))}".lstrip(", ")
        )
    only = _index("row", row, subject.rows), _index("col", col, subject.cols)

    with drawing():
        letters = Letters([*subject.rows.names, *subject.cols.names, title])
        title = letters.of(title)
        hidden = sink_key(subject.record, subject.example) if hide_sink else None
        found = [compute_weights(each, (len(each.rows), len(each.cols)), hidden) for each in subjects]
        weights = np.full((len(found), len(subject.rows), len(subject.cols)), np.nan)
        weights[:, only[0], only[1]] = [each.values[only] for each in found]
        top = float(np.nanmax(weights, initial=0.0))
        norm = choose_norm(scale, vmax or top)
        strength = norm(np.ma.masked_invalid(weights.ravel())).filled(0.0).clip(0, 1).reshape(weights.shape)
        drawn = np.argwhere(strength >= LEAST)
        drawn = drawn[np.argsort(strength[tuple(drawn.T)], kind="stable")]  # the strongest on top
        notes = [f"the strongest line is {top:.4g}", *scale_note(scale)]
        if len(drawn) > MOST_LINES:
            notes.append(f"the {MOST_LINES:,} strongest lines: {len(drawn) - MOST_LINES:,} are not drawn")
        notes += hidden_note(subject, found[0], letters) if len(chosen) == 1 else []
        figure, axes, columns = _page(letters, title, notes, subject, width)
        _draw_lines(axes, columns, drawn[-MOST_LINES:], strength, _colours(subjects))
        _name_columns(axes, letters, subject, columns)
        if len(chosen) > 1:
            _name_heads(axes, letters, subjects, columns)
        if row is not None or col is not None:
            _print_weights(axes, letters, weights[:, only[0], only[1]].mean(0), on_left=row is None)
        return write(figure, path, letters, title)


def _index(name: str, place: Place | None, axis: Axis) -> slice:
    """Return which of the drawn tokens of an axis have lines: the one at `place`, or all."""
    if place is None:
        return slice(None)
    at = check_place(name, find_position(place, axis.tokens or axis.labels, name), axis.size)
    if at not in axis.places:
        raise ArgumentError(f"{name}: expected one of the drawn tokens. Received: {name}={place!r}")
    number = list(axis.places).index(at)
    return slice(number, number + 1)


def _colours(subjects: Sequence[Subject]) -> list[str]:
    """Return a colour for each head, that of its number; where another head has it already, the next free one."""
    taken: list[int] = []
    for subject in subjects:
        order = [(subject.heads[0] + i) % len(COLOURS) for i in range(len(COLOURS))]
        taken.append(next((place for place in order if place not in taken), order[0]))
    return [COLOURS[place] for place in taken]


def _page(
    letters: Letters, title: str, notes: Sequence[str], subject: Subject, width: float | None
) -> tuple[Figure, Axes, tuple[float, float]]:
    """Make the figure; return (figure, axes in inches from the top left, the places of the two columns)."""
    sides = [
        max(letters.width(letters.of(name), LABEL) for name in axis.names) for axis in (subject.rows, subject.cols)
    ]
    around = 2 * (NUMBER + GAP)
    total = width or min(PAGE, max(COLUMN, (sum(sides) + around) / (1 - BETWEEN)))
    inner, room = total - 2 * EDGE, (1 - BETWEEN) * total / 2 - NUMBER - GAP
    if room <= 0:
        raise ArgumentError(
            f"width: expected at least {around / (1 - BETWEEN) + 0.1:.1f} inches. Received: width={width:g}"
        )
    left, right = (NUMBER + GAP + min(side, room) for side in sides)
    titles = letters.wrap(title, TITLE, inner, letters.bold)
    notes = [line for note in notes for line in letters.wrap(note, NOTE, inner)]
    top, tall = EDGE + len(titles) * TITLE * LINE / 72, (1 + max(len(subject.rows), len(subject.cols))) * PITCH
    figure = blank(total, top + tall + GAP + len(notes) * NOTE * LINE / 72 + EDGE)
    write_lines(figure, letters, titles, EDGE, EDGE, TITLE, weight=letters.bold)
    axes = place_axes(figure, EDGE, top, inner, tall, xlim=(0, inner), ylim=(tall, 0))
    axes.set_axis_off()
    write_notes(figure, letters, notes, EDGE, top + tall + GAP)
    return figure, axes, (left, inner - right)


def _draw_lines(
    axes: Axes, columns: tuple[float, float], drawn: Array, strength: Array, colours: Sequence[str]
) -> None:
    """Draw a curve for each of `drawn`, (head, row, column), as dark and as wide as its strength."""
    from matplotlib.collections import PathCollection
    from matplotlib.colors import to_rgb
    from matplotlib.path import Path as Curve

    (left, right), middle = columns, sum(columns) / 2
    codes = [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4]
    curves, inks = [], []
    for head, row, col in drawn:
        shift = 0.02 * (head - (len(colours) - 1) / 2)  # heads keep their order, so colour is not the only sign
        start, end = _middle(row) + shift, _middle(col) + shift
        curves.append(Curve([(left, start), (middle, start), (middle, end), (right, end)], codes))
        inks.append((*to_rgb(colours[head]), 0.1 + 0.85 * strength[head, row, col]))
    wide = [0.3 + 1.7 * strength[tuple(each)] for each in drawn]
    axes.add_collection(PathCollection(curves, facecolors="none", edgecolors=inks, linewidths=wide), autolim=False)


def _name_columns(axes: Axes, letters: Letters, subject: Subject, columns: tuple[float, float]) -> None:
    for axis, edge, side in zip((subject.rows, subject.cols), columns, (-1, 1), strict=True):
        room = (edge if side < 0 else axes.get_xlim()[1] - edge) - NUMBER - GAP / 2
        look: dict[str, Any] = {"ha": "right" if side < 0 else "left", "va": "center_baseline", "parse_math": False}
        at = edge + side * GAP / 2
        axes.text(at, _middle(-1), axis.word, color=FAINT, fontproperties=letters.properties(TITLES), **look)
        for number, name in enumerate(axis.names):
            label = letters.cut(letters.of(name), LABEL, room)
            axes.text(at, _middle(number), label, color=INK, fontproperties=letters.properties(LABEL), **look)


def _name_heads(axes: Axes, letters: Letters, subjects: Sequence[Subject], columns: tuple[float, float]) -> None:
    """Write the numbers of the heads in their colours, above the lines."""
    pitch = min(0.3, (columns[1] - columns[0]) / len(subjects))
    for number, (subject, colour) in enumerate(zip(subjects, _colours(subjects), strict=True)):
        at = sum(columns) / 2 + pitch * (number - (len(subjects) - 1) / 2)
        look: dict[str, Any] = {
            "ha": "center",
            "va": "center_baseline",
            "fontproperties": letters.properties(TITLES, letters.bold),
        }
        axes.text(at, _middle(-1), str(subject.heads[0]), color=colour, **look)


def _print_weights(axes: Axes, letters: Letters, weights: Array, *, on_left: bool) -> None:
    """Print the weight of each line at the outer edge."""
    at, align = (0.0, "left") if on_left else (axes.get_xlim()[1], "right")
    for number, weight in enumerate(weights.ravel()):
        if not np.isnan(weight):
            look: dict[str, Any] = {
                "ha": align,
                "va": "center_baseline",
                "color": FAINT,
                "fontproperties": letters.properties(NOTE),
            }
            axes.text(at, _middle(number), f"{weight:.3f}", **look)


def _middle(number: int) -> float:
    """Return the place of a token in its column, in inches from the top; -1 = the heading."""
    return (number + 1.5) * PITCH
