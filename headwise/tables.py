"""Tables of plain rows, drawn by rich: on a terminal, in a notebook, and as plain text."""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from headwise.language import said

if TYPE_CHECKING:
    from rich.console import RenderableType

Cell = str | Sequence[tuple[str, str]]  # a text, or pieces of one, each with a style of rich


@dataclass(frozen=True)
class Heading:
    """A column: what stands above it, and on which side its cells are. Only those on the left may be wrapped."""

    text: str
    side: Literal["left", "right"] = "right"


@dataclass(frozen=True)
class Table:
    """Rows in groups, with a line between two groups. `print` it, or give it to a console of rich.

    Nothing in a text is read as markup. Without rows only the notes are drawn.
    """

    headings: Sequence[Heading]
    groups: Sequence[Sequence[Sequence[Cell]]]  # one cell in each row for each heading
    title: str = ""
    caption: str = ""  # below the rows
    notes: Sequence[str] = ()  # below everything, a line each

    def __str__(self) -> str:
        """Plain text in which no row is wrapped or cut."""
        from rich.console import Console
        from rich.measure import Measurement

        console = Console(file=io.StringIO(), width=10_000, color_system=None, force_jupyter=False)
        console.width = max(20, Measurement.get(console, console.options, self).maximum)
        with console.capture() as captured:
            console.print(self)
        return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n")

    def __rich__(self) -> RenderableType:
        from rich.box import SIMPLE_HEAD
        from rich.console import Group
        from rich.table import Table as RichTable
        from rich.text import Text

        notes = [Text(note) for note in self.notes]
        if not self.groups:
            return Group(*notes)
        table = RichTable(
            title=Text(self.title) if self.title else None,
            caption=Text(self.caption) if self.caption else None,
            box=SIMPLE_HEAD,
            pad_edge=False,
            collapse_padding=True,
            title_justify="left",
            caption_justify="left",
            title_style="bold",
            caption_style="dim",
        )
        for heading in self.headings:
            left = heading.side == "left"
            table.add_column(
                said(heading.text), justify=heading.side, no_wrap=not left, overflow="fold" if left else "ellipsis"
            )
        for group in self.groups:
            for row in group:
                table.add_row(*(Text(cell) if isinstance(cell, str) else Text.assemble(*cell) for cell in row))
            table.add_section()
        return Group(table, *notes)


def padded(text: str, columns: int) -> str:
    """The text with blanks behind it, so that it fills these columns of a terminal."""
    return text + " " * (columns - width(text))


def width(text: str) -> int:
    """The columns of a terminal that a text takes: two for each Chinese letter."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)
