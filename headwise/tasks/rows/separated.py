"""Finds the layout of a CSV or TSV file (separator, header, whether quotes have a meaning), and reads its rows."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from headwise.errors import FileError
from headwise.language import Sentence
from headwise.tasks.rows.names import make_different, note_renamed

_QUOTED = re.compile(r'"(?:[^"]|"")*"')


@dataclass(frozen=True)
class Layout:
    """The properties of a CSV or TSV file that are needed to read it exactly.

    Args:
        names: the names of the columns; in a file without a header "1", "2", …
        separator, quoting: as in the `csv` module.
        headed: whether the first line is a header.
        notes: a sentence for each column whose name occurs earlier in the header: it is called "text.2".
    """

    names: tuple[str, ...]
    separator: str
    quoting: int
    headed: bool
    notes: tuple[str, ...] = ()


def survey(lines: Callable[[], Iterable[str]], name: str, wanted: Sequence[str], *, tabs: bool) -> Layout:
    """Find the layout of a CSV or TSV text.

    In a TSV file quotes are characters like any other, unless each cell that has one is quoted as the `csv` module
    quotes: corpora have lone quotes, spreadsheets write quoted cells. A CSV file whose header has no comma may be
    separated by semicolons, tabs or vertical bars.

    Args:
        lines: a function that gives the lines from the first one, with their ends, at each call.
        wanted: the columns that will be used. If all these names are numbers, columns are counted, and the file has no
            header, except a header that is 0, 1, 2, … itself.

    Raises:
        FileError: quotes in the first row that are not closed.
    """
    separator = "\t" if tabs else _separator(next(iter(lines()), ""), name)
    quoting = csv.QUOTE_NONE if tabs and _are_characters(lines()) else csv.QUOTE_MINIMAL
    if tabs and quoting == csv.QUOTE_MINIMAL and _joins_rows(_rows(lines(), name, separator, quoting, 1)):
        quoting = csv.QUOTE_NONE
    first = next(_rows(lines(), name, separator, quoting, 1), None)
    if first is None:
        return Layout((), separator, quoting, True)
    cells = first[1]
    headed = not wanted or not all(each.isdecimal() for each in wanted) or _counts_itself(cells)
    if not headed:
        return Layout(tuple(str(number) for number in range(1, len(cells) + 1)), separator, quoting, headed)
    names = make_different(cell.strip() or "unnamed" for cell in cells)
    given = [cell.strip() or name for cell, name in zip(cells, names, strict=True)]
    return Layout(names, separator, quoting, headed, note_renamed(given, names))


def rows(lines: Iterable[str], layout: Layout, name: str, *, line: int = 1) -> Iterator[tuple[int, list[str]]]:
    """Yield (line on which the row begins, its cells) for each row except the header; missing cells at the end are "".

    No line is taken from `lines` before it is needed.

    Args:
        line: the number of the first of `lines`.

    Raises:
        FileError: a row with more cells than there are columns, or quotes that are not closed; the message says in
            which line.
    """
    width = len(layout.names)
    found = _rows(lines, name, layout.separator, layout.quoting, line)
    if layout.headed and line == 1:
        next(found, None)
    for number, cells in found:
        if len(cells) > width:
            sign = Sentence("tabs") if layout.separator == "\t" else repr(layout.separator)
            raise FileError(
                "{name}: line {number} has {count} cells, the first line {width}: quote cells that have {sign} in them",
                name=name,
                number=number,
                count=len(cells),
                width=width,
                sign=sign,
            )
        yield number, cells + [""] * (width - len(cells))


def _separator(header: str, name: str) -> str:
    header = _QUOTED.sub("", header)
    if 0 < header.count(",") <= header.count(";"):
        raise FileError(
            "{name}: line 1: expected cells separated by commas or by semicolons. Received: both; quote the "
            "headings that have one in them",
            name=name,
        )
    return "," if "," in header else max(",;\t|", key=header.count)


def _counts_itself(cells: Sequence[str]) -> bool:
    """Return whether a header is 0, 1, 2, … or 1, 2, 3, …, as written from a DataFrame without column names."""
    return any(list(cells) == [str(first + place) for place in range(len(cells))] for first in (0, 1))


def _are_characters(lines: Iterable[str]) -> bool:
    """Return whether quotes in a TSV file are ordinary characters of its cells."""
    width, lone = None, False
    for each in lines:
        line = each.rstrip("\r\n")
        width = line.count("\t") if width is None else width
        if line and line.count("\t") != width:  # a quoted cell contains a tab or a new line
            return False
        lone = lone or ('"' in line and any('"' in cell and not _QUOTED.fullmatch(cell) for cell in line.split("\t")))
    return lone


def _joins_rows(found: Iterable[tuple[int, list[str]]]) -> bool:
    """Return whether a cell has tabs and line ends: lone quotes, between which there are other rows."""
    return any("\t" in cell and "\n" in cell for _, row in found for cell in row)


def _rows(lines: Iterable[str], name: str, separator: str, quoting: int, line: int) -> Iterator[tuple[int, list[str]]]:
    """Yield (line on which the row begins, its cells) for each row."""
    longest = csv.field_size_limit(sys.maxsize)
    begin = line
    try:
        reader = csv.reader(lines, delimiter=separator, quoting=quoting, strict=True)  # type: ignore[arg-type]
        for row in reader:
            yield line, row
            line = begin + reader.line_num
    except csv.Error as error:
        why = (
            "a quote is never closed" if "end of data" in str(error) else "a quote within a quoted cell; write it twice"
        )
        raise FileError("{name}: line {line}: {why}", name=name, line=line, why=why) from error
    finally:
        csv.field_size_limit(longest)
