"""Prints wide tables whole, and which attention modules were not recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwise.language import said
from headwise.records.coverage import Coverage

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def print_whole(console: Console, drawn: RenderableType) -> None:
    """Print an object of rich. If the console is not a terminal, rows are neither wrapped nor cut."""
    from rich.measure import Measurement

    if not console.is_terminal:
        console.width = Measurement.get(console, console.options.update(max_width=10_000), drawn).maximum
    console.print(drawn)


def print_unseen(console: Console, coverage: Coverage) -> None:
    """Print the attention modules that were not recorded (missed or refused), and why; then the notes."""
    from rich.text import Text

    if unseen := (*coverage.missed, *coverage.refused):
        print_whole(console, Coverage(unseen))
    for note in coverage.notes:
        console.print(Text(said("note: {note}", note=note)), soft_wrap=True)
