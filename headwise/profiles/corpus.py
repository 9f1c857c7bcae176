"""Yields the texts of a text file, a table or a data set, one after the other; they are never all in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headwise.errors import ArgumentError
from headwise.profiles.windows import LONGEST
from headwise.tasks.rows.chunks import SUFFIXES, Reader, look_through, opened
from headwise.tasks.rows.encodings import decode
from headwise.tasks.rows.sources import find_suffix, readable
from headwise.tasks.rows.streamed import stream_column
from headwise.tasks.rows.tables import as_texts, take_column

ROWS = 2_000  # rows of a table that are in memory at once


@dataclass(frozen=True)
class Corpus:
    """Texts that can be read again from the beginning. Empty texts are skipped."""

    name: str
    open: Callable[[], Iterator[str]]

    def __iter__(self) -> Iterator[str]:
        return (text for text in self.open() if text.strip())


def of_file(path: Path, column: str = "text", *, lines: bool = False) -> Corpus:
    """Return the texts of a file as a corpus, which reads the file when it is iterated.

    Args:
        path: a table (.csv, .tsv, .jsonl, .ndjson, .parquet), one text per row; any other file is UTF-8 text. All but
            Parquet also as .gz.
        column: for a table, the column with the texts.
        lines: for a text file: each line is a text. Otherwise each paragraph is a text; blank lines separate
            paragraphs.

    Raises:
        FileError: during reading: the file is missing or cannot be read; the message says where.
        ArgumentError: the column does not exist; the message lists the columns.
    """
    if find_suffix(path) in SUFFIXES:
        if lines:
            raise ArgumentError(f"{path} is a table, whose rows are texts. Leave --lines out")
        return Corpus(path.name, lambda: _rows(path, column))
    return Corpus(path.name, lambda: _lines(path) if lines else _paragraphs(path))


def of_dataset(name: str, column: str = "text") -> Corpus:
    """Return the texts of a Hugging Face data set as a corpus, which streams them when it is iterated.

    Args:
        name: "name", "name:split" or "name/config:split" on the hub, or a folder that `save_to_disk` wrote or that
            `load_dataset` reads. The split is "train" unless it is given.
        column: the column with the texts.

    Raises:
        ArgumentError: `datasets` is not installed, or there is no such column.
        FileError: there is no such data set, or it cannot be read.
    """
    return Corpus(name, lambda: stream_column(name, column))


def _rows(path: Path, column: str) -> Iterator[str]:
    found = look_through(path, (column,), ROWS)
    with Reader(found) as reader:
        for number in range(len(found.chunks)):
            table = reader.read(number)
            yield from as_texts(table, column, take_column(table, column))


def _lines(path: Path) -> Iterator[str]:
    with readable(path), opened(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(4 * LONGEST), b""), start=1):
            yield decode(line, str(path), number, path).strip()


def _paragraphs(path: Path) -> Iterator[str]:
    held: list[str] = []
    size = 0
    for line in _lines(path):
        if (not line or size > LONGEST) and held:
            yield "\n".join(held)
            held, size = [], 0
        if line:
            held.append(line)
            size += len(line)
    yield "\n".join(held)
