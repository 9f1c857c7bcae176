"""Chooses and draws the names along the sides of a heat map: as many as fit without overlap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from headwise.plot.colour import FAINT, INK
from headwise.plot.fonts import Letters, is_upright
from headwise.plot.paper import LABEL, SMALLEST, TITLES
from headwise.plot.subject import Axis
from headwise.text.labels import characters

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LONGEST = 1.1  # inches; longer names are cut
PITCH = 1.12  # smallest line spacing, as a multiple of the font size
DESCENT = 0.2  # descent below the base line, as a multiple of the font size
WIDE = 1.7  # labels wider than this multiple of the font size are rotated
STACK = 1.3  # spacing of vertically stacked characters, as a multiple of the font size


@dataclass(frozen=True)
class Names:
    """The names of one side of a heat map, as they are drawn."""

    side: Literal["rows", "cols"]
    places: list[int]  # indices of rows or columns
    texts: list[str]
    turned: list[bool]  # whether each is rotated to read from bottom to top
    size: float  # font size in points
    step: int  # every step-th has a name
    depth: float  # inches needed beside the map
    upright: float = 0.0  # inches: the widest name that is not rotated; 0 for rows


def fit_names(axis: Axis, letters: Letters, cell: float, side: Literal["rows", "cols"]) -> Names:
    """Choose the names for cells of `cell` inches: first with smaller letters, then every 2nd, 5th, 10th … name."""
    best = None
    for step, size in _ways(len(axis)):
        if step * cell * 72 < SMALLEST:  # too small even for the smallest letters
            continue
        best = _names(axis, letters, step, size, side, step * cell)
        if step * cell * 72 >= _pitch(best, axis.labels is not None or step == 1) or step >= len(axis):
            break
    assert best is not None
    return best


def _ways(count: int) -> Iterator[tuple[int, float]]:
    """Yield (step, font size) to try, the best first; every step-th row or column has a name."""
    for size in (LABEL, 6.5, 6.0, 5.5, SMALLEST):
        yield 1, size
    step = 1
    while step < count:
        for factor in (2, 5, 10):
            yield step * factor, 6.5
        step *= 10
    yield count, SMALLEST


def _names(axis: Axis, letters: Letters, step: int, size: float, side: Literal["rows", "cols"], room: float) -> Names:
    places = list(range(0, len(axis), step))
    texts = [letters.cut(letters.of(axis.name(axis.places[place])), size, LONGEST) for place in places]
    widths = [letters.width(text, size) for text in texts]
    if side == "rows":
        return Names(side, places, texts, [False] * len(texts), size, step, max(widths))
    if axis.labels is None or max(widths) + 3 / 72 <= room:
        return Names(side, places, texts, [False] * len(texts), size, step, size * STACK / 72, max(widths))
    stacks = [
        [text[start:stop] for start, stop in dict.fromkeys(characters(text))] if is_upright(text) else [text]
        for text in texts
    ]
    across = [max(letters.width(part, size) for part in stack) for stack in stacks]
    turned = [not is_upright(text) or wide > WIDE * size / 72 for text, wide in zip(texts, across, strict=True)]
    depth = max(
        width if turn else len(stack) * size * STACK / 72
        for width, turn, stack in zip(widths, turned, stacks, strict=True)
    )
    texts = [text if turn else "\n".join(stack) for text, turn, stack in zip(texts, turned, stacks, strict=True)]
    upright = max([wide for wide, turn in zip(across, turned, strict=True) if not turn], default=0.0)
    return Names(side, places, texts, turned, size, step, depth, upright)


def _pitch(names: Names, named: bool) -> float:
    """Return the smallest distance of names in points that is readable; numbers with gaps get more space."""
    return max(names.size * (PITCH if named else 2 * PITCH), names.upright * 72 + 2 if names.upright else 0.0)


def draw_names(axes: Axes, letters: Letters, names: Names) -> None:
    """Draw the names to the left of the axes, or on top."""
    axis = axes.yaxis if names.side == "rows" else axes.xaxis
    if names.side == "cols":
        axes.xaxis.tick_top()
    height = axes.get_window_extent().height / axes.figure.dpi * 72
    axis.set_ticks(names.places, labels=names.texts)
    axis.set_tick_params(which="both", length=2 if names.step > 1 else 0, width=0.4, color=FAINT, pad=2, labelcolor=INK)
    axis.set_tick_params(which="minor", length=0)
    for label, turn in zip(axis.get_ticklabels(), names.turned, strict=True):
        label.set(fontproperties=letters.properties(names.size), parse_math=False, rotation=90 if turn else 0)
        label.set_linespacing(1.1)
        if names.side == "cols" and (turn or "\n" in label.get_text()):
            label.set(va="bottom", ha="center")
        elif names.side == "cols":  # on one base line
            label.set(va="baseline", ha="center", y=1 + DESCENT * names.size / height)


def name_side(axes: Axes, letters: Letters, axis: Axis, names: Names) -> None:
    """Draw the names of a side, and its title."""
    draw_names(axes, letters, names)
    write_title = axes.set_ylabel if names.side == "rows" else axes.set_xlabel
    write_title(side_title(axis, names), fontproperties=letters.properties(TITLES), color=INK, labelpad=3)
    axes.xaxis.set_label_position("top")


def side_title(axis: Axis, names: Names) -> str:
    """Return the title of a side: "query" or "key", and, if only every n-th name is drawn, a note of that."""
    if names.step == 1:
        return axis.word
    return f"{axis.word} (every {ordinal(names.step)} named)"


def ordinal(number: int) -> str:
    ending = "th" if number // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
