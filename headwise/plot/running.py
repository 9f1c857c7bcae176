"""`text`: a text whose tokens are shaded by their attention from one query, or to one key."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headwise.errors import ArgumentError, DtypeError
from headwise.plot.bidi import Direction, arrange, find_direction, joins
from headwise.plot.colour import FAINT, HIDDEN, INK, PAPER, Scale, check_look, choose_norm, colours, ink_on, scale_note
from headwise.plot.fonts import Letters
from headwise.plot.paper import (
    COLUMN,
    EDGE,
    GAP,
    LINE,
    MASKED_NOTE,
    NOTE,
    PAGE,
    TITLE,
    Box,
    add_bar,
    add_boxes,
    add_hatched,
    blank,
    check_out,
    drawing,
    place_axes,
    write,
    write_lines,
    write_notes,
)
from headwise.plot.subject import Axis, Head, Labels, Places, Subject, find_subject
from headwise.plot.weights import compute_weights, hidden_note, sink_key
from headwise.records import AttentionRecord, Seen
from headwise.records.seen import Layer
from headwise.text.places import Place
from headwise.text.tokens import cut_at_tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PatchCollection
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.figure import Figure

SIZE = 9.0  # points
PITCH = 1.8  # line spacing, as a multiple of the font size
ABOVE, BELOW = 0.98, 0.36  # a token's background above and below the base line, as multiples of the font size
TALLEST = 100.0  # inches
FRAME, AROUND = 1.2, 2.6  # points of the frame of the chosen token, and of it with the paper on both sides
BAR_LENGTH, BAR_HEIGHT, BAR_DEPTH = 1.4, 0.08, 0.44
HIDE = -1.0  # stands for the weight of the hidden key
ZERO_WIDTH_JOINER, RIGHT_TO_LEFT_MARK = "\u200d", "\u200f"


def text(
    what: Seen | AttentionRecord,
    *,
    layer: Layer | None = None,
    head: Head = 0,
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
    cmap: str | Colormap = "ember",
    vmax: float | None = None,
    title: str | None = None,
    width: float | None = None,
    out: str | Path | None = None,
) -> Figure:
    """Draw the text with each token shaded by its weight.

        headwise.plot.text(seen, layer=3, head=5, row="it", out="it.pdf")   # the keys that "it" attends to
        headwise.plot.text(seen, layer=3, head=5, col=10)                   # the queries that attend to token 10

    The chosen token is framed if it is in the drawn text. Lines are as wide as a page.

    Args:
        row: the query whose weights are shown on the text of the keys: its number, or its text; "it:2" is the second
            "it". Give either `row` or `col`.
        col: the key whose weights are shown on the text of the queries.
        rows, cols: the part of the text to show: of the queries with `col`, of the keys with `row`.
        what, layer, head, example, scale, tokens, row_labels, col_labels: as in `heatmap`.
        hide_sink, cmap, vmax, title, width, out: as in `heatmap`.

    Raises:
        ArgumentError, RecordError, FileError: see `heatmap`; also if both or neither of `row` and `col` are given.
    """
    path = check_out(out)
    check_look(scale, vmax, width)
    if (row is None) == (col is None):
        raise ArgumentError(
            "text: expected exactly one of row= (a query and its keys) and col= (a key and its queries)"
        )
    for name, place in (("row", row), ("col", col)):
        if place is not None and (isinstance(place, bool) or not isinstance(place, (int, str))):
            raise DtypeError(f"text: {name}: expected a number or the text of a token. Received: {place!r}")
    if (rows is not None and row is not None) or (cols is not None and col is not None):
        raise ArgumentError("text: with row=, choose a part of the text with cols=; with col=, use rows=")
    if hide_sink and row is None:
        raise ArgumentError("hide_sink: expected row=, which draws the keys. Received: col=. Leave hide_sink out")
    queries, keys = rows if row is None else row, cols if col is None else col
    called = ("rows" if row is None else "row", "cols" if col is None else "col")
    subject = find_subject(what, layer, head, example, queries, keys, tokens, row_labels, col_labels, called)
    asking, shown = (subject.cols, subject.rows) if row is None else (subject.rows, subject.cols)
    title = _title(subject, asking, row is None) if title is None else title

    with drawing():
        pieces = _pieces(shown)
        letters = Letters([*(piece.text for piece in pieces), title])
        title = letters.of(title)
        hidden = sink_key(subject.record, subject.example) if hide_sink and row is not None else None
        weights = compute_weights(subject, (len(subject.rows), len(subject.cols)), hidden)
        framed = {*asking.places[:1]} & {*shown.places} if _is_same_text(subject) else set()
        pieces = [
            piece if piece.text.isspace() else Piece(letters.of(piece.text), piece.place, piece.place in framed)
            for piece in pieces
        ]

        inner = (width or PAGE) - 2 * EDGE
        lines = _lines(pieces, letters, inner)
        if width is None:
            inner = min(inner, max([COLUMN - 2 * EDGE, *(_width(line, letters) + 0.02 for line in lines)]))
        notes = [f"framed: the {asking.word}"] if framed else []
        notes += [*hidden_note(subject, weights, letters), *scale_note(scale)]
        figure, axes, bar = _page(letters, title, [MASKED_NOTE] * weights.masked, notes, inner, len(lines))
        norm = choose_norm(scale, vmax or weights.top)
        shades = dict(zip(shown.places, weights.values.ravel(), strict=True))
        if weights.hidden is not None:
            shades[subject.cols.places[weights.hidden]] = HIDE
        grounds = _draw_lines(axes, letters, lines, shades, norm, colours(cmap))
        add_bar(figure, letters, grounds, bar, "horizontal")
        return write(figure, path, letters, title)


def _title(subject: Subject, asking: Axis, by_col: bool) -> str:
    place = asking.places[0]
    name = f"“{asking.name(place)}” ({asking.word} {place})" if asking.labels else f"{asking.word} {place}"
    return f"{subject.title}: {'attention to' if by_col else 'attention from'} {name}"


def _is_same_text(subject: Subject) -> bool:
    """Return whether queries and keys are the same tokens."""
    site = subject.record.site
    return (
        subject.rows.size == subject.cols.size
        and subject.rows.labels == subject.cols.labels
        and (site is None or site.kind == "self")
    )


# --- The text in pieces -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Piece:
    """A token, or the text between two tokens."""

    text: str
    place: int | None = None  # the index of the token; None = text between tokens
    framed: bool = False

    @property
    def is_break(self) -> bool:
        """Whether the line ends after this piece."""
        return self.text == "\n"


def _pieces(axis: Axis) -> list[Piece]:
    """Return the shown tokens with the text between them; the names of tokens if there is no text."""
    pieces: list[Piece] = []
    parts = _parts(axis)
    for before, place in zip([None, *axis.places], axis.places, strict=False):
        gap, own = parts[place]
        if before is not None and place != before + 1:
            pieces += [Piece(" "), Piece("…"), Piece(" ")]
        elif before is not None and "\n" in gap:
            pieces.append(Piece("\n"))
        elif before is not None and gap:  # the text that the tokenizer skipped
            pieces += [Piece(" "), *([Piece(gap.strip()), Piece(" ")] if gap.strip() else [])]
        pieces.append(Piece(own, place))
    return pieces


def _parts(axis: Axis) -> list[tuple[str, str]]:
    """Return (the text before it, its own text) for each token, from the original text if that is known."""
    tokens = axis.tokens
    if tokens is None or not tokens.text:
        return [(" ", axis.name(place)) for place in range(axis.size)]
    parts: list[tuple[str, str]] = []
    pending, after_sign = "", False
    for label, sign, gap, piece in zip(tokens.labels, tokens.special, *cut_at_tokens(tokens), strict=True):
        ink = piece.strip()
        lead = piece[: piece.find(ink)]
        parts.append((pending + gap + lead or " " * (sign or after_sign), ink or label))
        after = piece[len(lead) + len(ink) :]
        pending = after if ink or "\n" in after else ""  # an invisible space is drawn as its label
        after_sign = sign
    return parts


# --- Lines ------------------------------------------------------------------------------------------------------------


def _lines(pieces: Sequence[Piece], letters: Letters, width: float) -> list[list[Piece]]:
    """Split the pieces into lines of `width` inches, between words and between Chinese characters."""
    lines: list[list[Piece]] = [[]]
    used = 0.0
    for word in _words(pieces):
        if word[0].is_break:
            lines.append([])
            used = 0.0
            continue
        word = [replace(piece, text=letters.cut(piece.text, SIZE, width)) for piece in word]
        taken = _width(word, letters)
        if used and used + taken > width:
            lines.append([])
            used = 0.0
        if not used and word[0].text.isspace():
            continue
        for piece in word:  # a word longer than a line is broken anywhere
            wide = _width([piece], letters)
            if used and used + wide > width:
                lines.append([])
                used = 0.0
            lines[-1].append(piece)
            used += wide
    return [line for line in lines if line]


def _words(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Group consecutive pieces that should stay on one line."""
    words: list[list[Piece]] = []
    for piece in pieces:
        before = words[-1][-1] if words else Piece("")
        if None in (before.place, piece.place) or _is_wide(before.text[-1:]) or _is_wide(piece.text[:1]):
            words.append([])
        words[-1].append(piece)
    return words


def _is_wide(character: str) -> bool:
    return bool(character) and unicodedata.east_asian_width(character) in "WF"


def _width(line: Sequence[Piece], letters: Letters) -> float:
    """Return the inches that pieces take: a frame stands outside of its token, so that the token can be read."""
    return sum(letters.width(piece.text, SIZE) + piece.framed * 2 * AROUND / 72 for piece in line)


# --- Drawing, in inches from the top left of the text -----------------------------------------------------------------


def _page(
    letters: Letters, title: str, swatches: list[str], notes: list[str], inner: float, count: int
) -> tuple[Figure, Axes, Axes]:
    """Make a figure for `count` lines; return (figure, axes for the lines in inches, axes for the colour bar)."""
    titles = letters.wrap(title, TITLE, inner, letters.bold)
    notes = [*swatches, *(line for note in notes for line in letters.wrap(note, NOTE, inner))]
    top, tall = EDGE + len(titles) * TITLE * LINE / 72 + GAP, count * SIZE * PITCH / 72
    bottom = top + tall + GAP
    height = bottom + BAR_DEPTH + len(notes) * NOTE * LINE / 72 + EDGE
    if height > TALLEST:
        raise ArgumentError(
            f"text: {count:,} lines need a figure {height:,.0f} inches high, expected at most {TALLEST:g}. "
            "Choose a part of the text: cols=slice(0, 1000) with row=, or rows=slice(0, 1000) with col="
        )
    figure = blank(inner + 2 * EDGE, height)
    write_lines(figure, letters, titles, EDGE, EDGE, TITLE, weight=letters.bold)
    axes = place_axes(figure, EDGE, top, inner, tall, xlim=(0, inner), ylim=(tall, 0))
    axes.set_axis_off()
    bar = place_axes(figure, EDGE, bottom, min(BAR_LENGTH, inner), BAR_HEIGHT)
    write_notes(figure, letters, notes, EDGE, bottom + BAR_DEPTH)
    return figure, axes, bar


def _draw_lines(
    axes: Axes,
    letters: Letters,
    lines: Sequence[Sequence[Piece]],
    shades: Mapping[int, float],
    norm: Normalize,
    cmap: Colormap,
) -> PatchCollection:
    """Draw the lines; return the shaded backgrounds, whose array holds the weights in the order of the tokens."""
    base = find_direction([piece.text for line in lines for piece in line])
    font, edge = letters.properties(SIZE), axes.get_xlim()[1]
    boxes: dict[int, Box] = {}
    frames: list[Box] = []
    for number, line in enumerate(lines):
        drawn = _drawn(line, letters, base)
        x = edge - sum(wide for _, wide in drawn) if base == "R" else 0.0
        y = (number + 0.5 + (ABOVE - BELOW) / 2 / PITCH) * SIZE * PITCH / 72
        for piece, wide in drawn:
            ink, place, beside = FAINT, piece.place, piece.framed * AROUND / 72
            if place is not None:
                boxes[place] = (x, y - ABOVE * SIZE / 72, wide, (ABOVE + BELOW) * SIZE / 72)
                frames += [(x + beside / 2, boxes[place][1], wide - beside, boxes[place][3])] * piece.framed
                if shades[place] >= 0:
                    ink = ink_on(cmap(norm(shades[place])))
            axes.text(
                x + beside, y, piece.text, fontproperties=font, color=ink, va="baseline", parse_math=False, zorder=3
            )
            x += wide
    shaded = sorted(place for place in boxes if shades[place] >= 0)
    grounds = add_boxes(axes, [boxes[place] for place in shaded], cmap=cmap, norm=norm, zorder=1)
    grounds.set_array(np.array([shades[place] for place in shaded]))
    add_hatched(axes, [box for place, box in boxes.items() if np.isnan(shades[place])])
    add_boxes(axes, [box for place, box in boxes.items() if shades[place] == HIDE], facecolor=HIDDEN)
    for width, colour in ((AROUND, PAPER), (FRAME, INK)):  # visible on dark backgrounds too
        add_boxes(axes, frames, facecolor="none", edgecolor=colour, linewidth=width, zorder=2)
    return grounds


def _drawn(line: Sequence[Piece], letters: Letters, base: Direction) -> list[tuple[Piece, float]]:
    """Return the pieces of a line from left to right, as they are drawn, each with its width."""
    texts = [piece.text for piece in line]
    ways = arrange(texts, base)
    if any(way == "R" for _, way in ways):
        if letters.has(ZERO_WIDTH_JOINER):  # joins the letters of a word in several pieces
            for i, (before, after) in enumerate(pairwise(line)):
                if joins(before.text, after.text):
                    texts[i], texts[i + 1] = texts[i] + ZERO_WIDTH_JOINER, ZERO_WIDTH_JOINER + texts[i + 1]
        if letters.has(RIGHT_TO_LEFT_MARK):  # mirrors brackets
            for i, way in ways:
                if way == "R" and not texts[i].isspace():
                    texts[i] = RIGHT_TO_LEFT_MARK + texts[i]
    drawn = [replace(line[i], text=texts[i]) for i, _ in ways]
    return [(piece, _width([piece], letters)) for piece in drawn]
