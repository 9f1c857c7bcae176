"""Reads the documents of a corpus, from a text file, or from a table with one document per row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from headwise.tasks.rows.tables import Data, read_table


def read_corpus(source: Any, column: str) -> Data:
    """Read documents into the column "text". A document's number is the number of its first line, or of its row.

    Args:
        source: a .txt file (also .gz), whose documents are separated by blank lines or, without blank lines, are lines;
            a list of strings; or anything that `read_table` takes.
        column: for a table, the column with the documents.

    Raises:
        FileError, ArgumentError: the file or column does not exist, or has no text.
    """
    if isinstance(source, Data):
        return source
    if isinstance(source, list | tuple) and source and isinstance(source[0], str):
        return read_table({"text": list(source)}, {"text": "text"}, texts=("text",))
    if not (isinstance(source, str | Path) and str(source).lower().removesuffix(".gz").endswith(".txt")):
        return read_table(source, {"text": column}, texts=("text",))
    lines = read_table(source, {"text": "text"})
    documents = list(_documents(lines.columns["text"]))
    whole = Data(
        lines.name,
        {"text": ["\n".join(lines.columns["text"][first:end]).strip() for first, end in documents]},
        [lines.numbers[first] for first, _ in documents],
        fingerprint=lines.fingerprint,
        unit=lines.unit,
    )
    return whole.without({row: "no text" for row, text in enumerate(whole.columns["text"]) if not text})


def _documents(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield (index of the first line, index after the last line) of each document.

    Documents are divided by blank lines or, if there are none, each line is a document.
    """
    filled = [place for place, line in enumerate(lines) if line.strip()]
    if not filled:
        yield 0, len(lines)
        return
    parted = len(filled) < filled[-1] - filled[0] + 1
    first = filled[0]
    for before, place in zip(filled, [*filled[1:], None], strict=True):
        if place is None or not parted or place > before + 1:
            yield first, before + 1
            first = place if place is not None else first
