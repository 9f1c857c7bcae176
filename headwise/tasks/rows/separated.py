"""How a CSV or TSV file is written: its separator, its header, whether quotes mean anything, where each row begins."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headwise.errors import FileError

_QUOTED = re.compile(r'"(?:[^"]|"")*"')


@dataclass(frozen=True)
class Layout:
    """What has to be known to read such a file exactly.

    Args:
        names: of the columns; those of a file without a header are "1", "2", …
        lines: the line on which each row begins, the header left out.
        separator, quoting: as the `csv` module has them.
        headed: whether the first line is a header.
    """

    names: tuple[str, ...]
    lines: tuple[int, ...]
    separator: str
    quoting: int
    headed: bool


def survey(text: str, name: str, wanted: Sequence[str], *, tabs: bool) -> Layout:
    """How a text is written.

    In a TSV file quotes are characters like any other, unless each cell that has one is quoted as the `csv` module
    quotes: corpora have lone quotes, spreadsheets write quoted cells. A CSV file whose header has no comma may be
    separated by semicolons or tabs.

    Args:
        wanted: the columns that will be asked for. If all are numbers there is no header, unless it counts: 0, 1, 2.

    Raises:
        FileError: a row with more cells than the first has, or quotes that are not closed; says in which line.
    """
    separator = "\t" if tabs else _separator(text)
    quoting = csv.QUOTE_NONE if tabs and _are_characters(text) else csv.QUOTE_MINIMAL
    rows = _rows(text, name, separator, quoting)
    first = next(rows, None)
    if first is None:
        return Layout((), (), separator, quoting, True)
    line, cells = first
    headed = not wanted or not all(each.isdecimal() for each in wanted) or _counts_itself(cells)
    lines = [] if headed else [line]
    for line, row in rows:
        if len(row) > len(cells):
            raise FileError(
                f"{name}: line {line} has {len(row)} cells, the first line {len(cells)}: "
                + ("quote cells that have tabs in them" if tabs else f"quote cells that have {separator!r} in them")
            )
        lines.append(line)
    names = _different(cells) if headed else tuple(str(number) for number in range(1, len(cells) + 1))
    return Layout(names, tuple(lines), separator, quoting, headed)


def _separator(text: str) -> str:
    header = text.partition("\n")[0]
    others = [each for each in (";", "\t") if each in header]
    return others[0] if others and "," not in header else ","


def _counts_itself(cells: Sequence[str]) -> bool:
    """Whether a header is 0, 1, 2, … or 1, 2, 3, …, as a frame without names is written."""
    return any(list(cells) == [str(first + place) for place in range(len(cells))] for first in (0, 1))


def _are_characters(text: str) -> bool:
    """Whether quotes in a TSV file are characters of its cells."""
    if '"' not in text:
        return False
    lines = text.splitlines()
    width = lines[0].count("\t")
    if any(line and line.count("\t") != width for line in lines):  # a quoted cell has a tab or a new line in it
        return False
    return any(
        '"' in cell and not _QUOTED.fullmatch(cell) for line in lines if '"' in line for cell in line.split("\t")
    )


def _rows(text: str, name: str, separator: str, quoting: int) -> Iterator[tuple[int, list[str]]]:
    """The cells of each row, and the line it begins on."""
    longest = csv.field_size_limit(sys.maxsize)
    line = 1
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, quoting=quoting, strict=True)  # type: ignore[arg-type]
        for row in reader:
            yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        why = (
            "a quote is never closed" if "end of data" in str(error) else "a quote within a quoted cell; write it twice"
        )
        raise FileError(f"{name}: line {line}: {why}") from error
    finally:
        csv.field_size_limit(longest)


def _different(names: Sequence[str]) -> tuple[str, ...]:
    """The names; the second "text" is called "text.2"."""
    found: dict[str, None] = {}
    for name in names:
        name = name.strip() or "unnamed"
        number, candidate = 1, name
        while candidate in found:
            number += 1
            candidate = f"{name}.{number}"
        found[candidate] = None
    return tuple(found)
