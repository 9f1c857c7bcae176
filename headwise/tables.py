"""Tables of plain rows: drawn by rich on a terminal and as plain text, and as HTML in a notebook."""

from __future__ import annotations

import html
import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from headwise.language import printable, said

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.segment import Segment

Cell = str | Sequence[tuple[str, str]]  # a text, or pieces of a text, each with a style of rich


@dataclass(frozen=True)
class Heading:
    """A column of a table: its heading, and the side to which its cells are aligned.

    Only cells aligned to the left may be wrapped.
    """

    text: str
    side: Literal["left", "right"] = "right"


@dataclass(frozen=True)
class Table:
    """Rows in groups, with a line between two groups. `print` the table, or pass it to a console of rich.

    No text is read as markup. Without rows only the notes are drawn.
    """

    headings: Sequence[Heading]
    groups: Sequence[Sequence[Sequence[Cell]]]  # each row has one cell for each heading
    title: str = ""
    caption: str = ""  # below the rows
    notes: Sequence[str] = ()  # below everything, one per line

    def __post_init__(self) -> None:
        """Make each text printable now, so that columns are as wide as what is shown."""
        cells = [
            [[tuple((printable(text), style) for text, style in _pieces(cell)) for cell in row] for row in group]
            for group in self.groups
        ]
        shown = {"groups": cells, "notes": tuple(map(printable, self.notes))}
        for name, value in {**shown, "title": printable(self.title), "caption": printable(self.caption)}.items():
            object.__setattr__(self, name, value)

    def __str__(self) -> str:
        """Return plain text in which no row is wrapped or cut. It looks as if rich drew it, but does not need rich."""
        if not self.groups:
            return "\n".join(self.notes)
        heads = [said(heading.text) for heading in self.headings]
        groups = [
            [["".join(text for text, _ in _pieces(cell)) for cell in row] for row in group] for group in self.groups
        ]
        rows = [heads, *(row for group in groups for row in group)]
        columns = [max(map(width, column)) for column in zip(*rows, strict=True)]
        sides = [heading.side for heading in self.headings]
        line = " " + "─" * (sum(columns) + 2 * len(columns) - 2)

        def drawn(row: Sequence[str]) -> str:
            return " " + "  ".join(map(padded, row, columns, sides)).rstrip()

        body = "\n\n".join("\n".join(map(drawn, group)) for group in groups)
        table = "\n".join([drawn(heads), line, body])
        title, caption = ("\n".join(wrap(text, width(line) + 1)) for text in (self.title, self.caption))
        below = "\n".join(filter(None, [caption, *self.notes]))
        return "\n\n".join(filter(None, [title, table, below]))

    def _repr_html_(self) -> str:
        """Return a small HTML table that takes its colours from the notebook, and scrolls if it is long."""
        notes = "".join(f"<div>{html.escape(note)}</div>" for note in self.notes)
        if not self.groups:
            return notes
        sides = [heading.side for heading in self.headings]
        head = "".join(_html_cell("th", h.text, h.side) for h in self.headings)
        body = "".join(
            f'<tr style="{"" if row else _LINE}">{"".join(map(_html_cell, ["td"] * len(sides), cells, sides))}</tr>'
            for group in self.groups
            for row, cells in enumerate(group)
        )
        above = (
            f"<caption style='text-align: left'>{html.escape(self.title).replace(chr(10), '<br>')}</caption>"
            if self.title
            else ""
        )
        below = f'<div style="{_SMALL}">{html.escape(self.caption)}</div>' if self.caption else ""
        table = f'<table style="{_TABLE}">{above}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        return f'<div style="max-height: 26em; overflow: auto">{table}</div>{below}{notes}'

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


# --- In a notebook: only colours that can be read on white and on black ---------------------------------------

_TABLE = "border-collapse: collapse; font-size: 12px; margin: 0"
_LINE = "border-top: 1px solid rgba(128, 128, 128, 0.4)"
_SMALL = "font-size: 11px; opacity: 0.75; max-width: 70em; margin-top: 4px"
_STYLES = {
    "bold": "font-weight: 600",
    "dim": "opacity: 0.5",
    "green": "color: #3a9d5d",
    "yellow": "color: #b98900",
    "red": "color: #dd5555",
}


def _pieces(cell: Cell) -> Sequence[tuple[str, str]]:
    return [(cell, "")] if isinstance(cell, str) else cell


def _html_cell(tag: str, cell: Cell, side: str) -> str:
    text = "".join(
        f'<span style="{_STYLES[style]}">{html.escape(piece)}</span>' if style in _STYLES else html.escape(piece)
        for piece, style in _pieces(cell)
    )
    return f'<{tag} style="text-align: {side}; padding: 1px 8px">{text}</{tag}>'


# --- Long texts -------------------------------------------------------------------------------------------------------

FEW = 12  # lines of the `repr` of a result


class Printed:
    """A result whose `str` has many lines: its `repr` has only the first lines, and a notebook shows all."""

    def __repr__(self) -> str:
        lines = str(self).splitlines()
        if len(lines) <= FEW:
            return "\n".join(lines)
        return "\n".join([*lines[: FEW - 1], f"… and {len(lines) - FEW + 1:,} more lines: print(...) writes all"])

    def _repr_html_(self) -> str:
        return f'<pre style="font-size: 12px; overflow-x: auto">{html.escape(str(self))}</pre>'


def make_console(**how: Any) -> Console:
    """Make a console of rich, which prints texts as `echo` does: none controls the terminal. It wraps Chinese, too."""
    from rich.console import Console
    from rich.text import Text

    class Safe(Console):
        def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
            if isinstance(renderable, Text) and not renderable.no_wrap and width(renderable.plain) > len(renderable):
                columns = (options or self.options).max_width
                parts = [line.divide(_breaks(line.plain, columns)) for line in renderable.split(allow_blank=True)]
                renderable = renderable.blank_copy("\n").join(part for line in parts for part in line)
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=printable(segment.text))

    return Safe(**how)


# A blank; a word; or a Chinese letter. The marks that end a sentence or a bracket stay with what is before them.
_UNIT = re.compile(r"\s+|[（「“《]*(?:[^\s\u2e80-\uffff“”…]+|[\u2e80-\uffff])[，。；：、！？）」”》…]*|.")


def wrap(text: str, columns: int) -> list[str]:
    """Break a text into lines of at most so many columns of a terminal: at blanks and between Chinese letters."""
    cuts = [0, *_breaks(text, columns), len(text)]
    return [text[begin:end].rstrip() for begin, end in itertools.pairwise(cuts)] if text.strip() else []


def _breaks(text: str, columns: int) -> list[int]:
    """Return the places at which the second line of a wrapped text begins, the third, and so on."""
    found, begin = [], 0
    for unit in _UNIT.finditer(text):
        if unit.start() > begin and width(text[begin : unit.end()].rstrip()) > columns:
            begin = unit.start()
            found.append(begin)
    return found


def padded(text: str, columns: int, side: str = "left") -> str:
    """Pad a text with blanks to this many columns of a terminal; `side`: the side at which the text begins or ends."""
    blanks = " " * (columns - width(text))
    return text + blanks if side == "left" else blanks + text


def width(text: str) -> int:
    """Count the columns that a text takes on a terminal: two for each Chinese letter."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)
