"""Computes the layout of a heat map in inches: the size of its cells and the space for names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwise.errors import ArgumentError
from headwise.plot.colour import Scale
from headwise.plot.fonts import Letters
from headwise.plot.paper import BAR, BAR_NAMES, COLUMN, EDGE, GAP, LINE, MOST_HEIGHT, PAGE, TITLES
from headwise.plot.subject import Subject
from headwise.plot.ticks import Names, fit_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CELL, CELL_OF_VALUE, LARGEST_CELL = 0.13, 0.2, 0.4
LEAST_SIDE = 0.35


@dataclass(frozen=True)
class Layout:
    """The size of a heat map, and of the space for names to its left and above it."""

    size: tuple[float, float]  # width and height
    cell: tuple[float, float]
    row_names: Names
    col_names: Names
    bar_names: float

    @property
    def left(self) -> float:
        return EDGE + TITLES * LINE / 72 + self.row_names.depth + GAP

    @property
    def above(self) -> float:
        return self.col_names.depth + TITLES * LINE / 72 + GAP

    @property
    def total(self) -> float:
        """The width of the figure."""
        return self.left + self.size[0] + GAP + BAR + self.bar_names


def lay_out(subject: Subject, letters: Letters, width: float | None, scale: Scale, printed: bool) -> Layout:
    """Choose the size of cells, with room for their names and printed weights; smaller if the page is too small."""
    rows, cols = len(subject.rows), len(subject.cols)
    cell = max(CELL_OF_VALUE if printed else CELL, min(LARGEST_CELL, 2.2 / max(rows, cols)))
    cell = min(cell, (width or PAGE) / cols, MOST_HEIGHT / rows)
    layout = _with_cells(subject, letters, cell, BAR_NAMES[scale])
    for _ in range(3):  # names and cells depend on each other
        around = layout.total - layout.size[0]
        if width is not None and width < around + LEAST_SIDE:
            raise ArgumentError(
                f"width: names and colour bar need {around:.1f} inches. Expected at least {around + LEAST_SIDE:.1f}. "
                f"Received: width={width:g}"
            )
        if width is not None:
            cell = (width - around) / cols
        elif layout.total > PAGE:
            cell = (PAGE - around) / cols
        elif layout.total < COLUMN:
            cell = min(LARGEST_CELL, (COLUMN - around) / cols)
        layout = _with_cells(subject, letters, min(cell, MOST_HEIGHT / rows), BAR_NAMES[scale])
    return layout


def within(subject: Subject, letters: Letters, axes: Axes) -> Layout:
    """Compute the layout of a heat map that is drawn into existing axes."""
    box, dpi = axes.get_window_extent(), axes.figure.dpi
    cell = min(box.width / dpi / len(subject.cols), box.height / dpi / len(subject.rows))
    return _with_cells(subject, letters, cell, 0.0, least=0.0)


def _with_cells(
    subject: Subject, letters: Letters, cell: float, bar_names: float, *, least: float = LEAST_SIDE
) -> Layout:
    """Make the layout with square cells, except that a side with few cells has a minimum length."""
    width, height = (max(cell, least / len(axis)) for axis in (subject.cols, subject.rows))
    return Layout(
        (width * len(subject.cols), height * len(subject.rows)),
        (width, height),
        fit_names(subject.rows, letters, height, "rows"),
        fit_names(subject.cols, letters, width, "cols"),
        bar_names,
    )
