"""The rows of a file, read in chunks of rows, so that it need not fit into memory: CSV, TSV, JSON lines, Parquet, text.

A file is scanned once, which finds all errors in its rows, its columns, and where each chunk begins. A chunk can then
be read without the chunks before it, by any process that has the file. A chunk that is read is a `Table`, with the same
rows that `open_table` gives for the whole file.
"""

from __future__ import annotations

import contextlib
import gzip
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any

from headwise.errors import ArgumentError, FileError
from headwise.tasks.rows import separated
from headwise.tasks.rows.encodings import decode, encoded_as, find_encoding, recode
from headwise.tasks.rows.names import make_different
from headwise.tasks.rows.separated import Layout
from headwise.tasks.rows.sources import (
    Table,
    arrow_errors,
    classes,
    decoded,
    find_suffix,
    from_arrow,
    is_packed,
    of_rows,
    parse_row,
    readable,
    transposed,
)

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
LINES = ".txt"  # a row for each line, also for empty lines
_BATCH = 10_000  # rows that are unpacked at a time

Tell = Callable[[int, int], None]  # (bytes of the file that were scanned, all bytes)


@dataclass(frozen=True)
class Chunk:
    """Where a chunk is in a file: its first row (from 0), its number of rows; in text also its line and byte."""

    first: int
    rows: int
    line: int = 0
    offset: int = 0


_BEGINNING = Chunk(0, 0, line=1)


@dataclass(frozen=True)
class Found:
    """The result of scanning a file: all that is needed to read any of its chunks.

    Args:
        columns: all columns that any row has, in the order in which they occur.
        layout: the layout of a CSV or TSV file.
        encoding: the encoding of a text file.
    """

    path: Path
    columns: tuple[str, ...]
    chunks: tuple[Chunk, ...]
    layout: Layout | None = None
    encoding: str = field(default_factory=find_encoding)

    @property
    def rows(self) -> int:
        return sum(chunk.rows for chunk in self.chunks)

    def to_json(self) -> dict[str, Any]:
        """Return all fields except the path, as JSON data."""
        layout = self.layout
        return {
            "columns": list(self.columns),
            "chunks": [[chunk.first, chunk.rows, chunk.line, chunk.offset] for chunk in self.chunks],
            "layout": layout and list(astuple(layout)),
            "encoding": self.encoding,
        }

    @classmethod
    def from_json(cls, path: Path, content: Mapping[str, Any]) -> Found:
        chunks = tuple(Chunk(*each) for each in content["chunks"])
        layout: Layout | None = None
        if content["layout"]:
            names, separator, quoting, headed, notes = content["layout"]
            layout = Layout(tuple(names), separator, quoting, headed, tuple(notes))
        return cls(path, tuple(content["columns"]), chunks, layout, content["encoding"])


def check_suffix(path: Path) -> None:
    """Raise ArgumentError if a file with this name cannot be read in chunks."""
    suffix, known = find_suffix(path), (*SUFFIXES, LINES)
    if suffix not in known or (suffix == ".parquet" and is_packed(path)):
        raise ArgumentError(
            "{path}: expected a name that ends in {suffixes}. Received: {name}",
            path=path,
            suffixes=", ".join(known),
            name=path.name,
        )


def look_through(path: Path, wanted: Sequence[str], rows: int, tell: Tell = lambda done, total: None) -> Found:
    """Scan a file and find its chunks; each has at most `rows` rows.

    Args:
        wanted: the columns that will be used, as for `open_table`.

    Raises:
        FileError: the file does not exist, or a row cannot be read; the message says which.
        ArgumentError: the kind of file is not supported, or it has no rows.
    """
    check_suffix(path)
    suffix = find_suffix(path)
    if suffix == ".parquet":
        with _parquet(path) as file:
            total, names = file.metadata.num_rows, make_different(file.schema_arrow.names)
        firsts = range(0, total, rows)
        found = Found(path, names, tuple(Chunk(first, min(rows, total - first)) for first in firsts))
    else:
        with readable(path):
            if suffix in (".csv", ".tsv"):
                found = _separated(path, wanted, rows, tell)
            else:
                found = _text(path, rows, tell) if suffix == LINES else _json(path, rows, tell)
    if not found.chunks:
        raise ArgumentError("{name}: there are no rows in it", name=path)
    return found


def find_layout(path: Path, wanted: Sequence[str]) -> Layout:
    """Find the layout (separator, header, quoting) of a CSV or TSV file. Raises FileError, like `look_through`."""
    with readable(path), contextlib.ExitStack() as files:

        def lines() -> Iterable[str]:
            return _Lines(files.enter_context(opened(path)), str(path))

        return separated.survey(lines, str(path), wanted, tabs=find_suffix(path) == ".tsv")


def _separated(path: Path, wanted: Sequence[str], most: int, tell: Tell) -> Found:
    layout = find_layout(path, wanted)
    with opened(path) as file:
        lines = _Lines(file, str(path))
        chunks = _cut(separated.rows(lines, layout, str(path)), lines, most, path, tell)
    return Found(path, layout.names, chunks, layout)


def _text(path: Path, most: int, tell: Tell) -> Found:
    with opened(path) as file:
        lines = _Lines(file, str(path))
        return Found(path, ("text",), _cut(lines, lines, most, path, tell))


def _json(path: Path, most: int, tell: Tell) -> Found:
    columns: dict[str, None] = {}

    def rows() -> Iterator[None]:
        for _, row in _objects(lines):
            yield columns.update(dict.fromkeys(row))

    with opened(path) as file:
        lines = _Lines(file, str(path), returns=False)
        chunks = _cut(rows(), lines, most, path, tell)
    return Found(path, tuple(columns), chunks)


def _objects(lines: _Lines) -> Iterator[tuple[int, dict[Any, Any]]]:
    """Yield (number of the line, row) for each row of a JSON lines file."""
    for text in lines:
        if text.strip():
            yield lines.number, parse_row(text.removesuffix("\n"), lines.name, lines.number)


def _cut(rows: Iterable[object], lines: _Lines, most: int, path: Path, tell: Tell) -> tuple[Chunk, ...]:
    """Divide the rows into chunks of `most` rows. A chunk begins where the last row of the previous chunk ends."""
    size = 0 if is_packed(path) else path.stat().st_size
    chunks: list[Chunk] = []
    begun = _BEGINNING
    count = 0
    for count, _ in enumerate(rows, start=1):
        if count - begun.first == most:
            chunks.append(replace(begun, rows=most))
            begun = Chunk(count, 0, line=lines.number + 1, offset=lines.offset)
            tell(lines.offset, size)
    return (*chunks, replace(begun, rows=count - begun.first)) if count > begun.first else tuple(chunks)


class _Lines:
    """Yields the lines of a file, with their line ends, from its current position, and knows the position after each.

    Args:
        returns: whether a carriage return by itself ends a line too.
    """

    def __init__(self, file: IO[bytes], name: str, begin: Chunk = _BEGINNING, *, returns: bool = True) -> None:
        self.name, self.returns = name, returns
        self.number, self.offset = begin.line - 1, begin.offset
        self._file = file

    def __iter__(self) -> Iterator[str]:
        for read in iter(self._file.readline, b""):
            for line in read.splitlines(keepends=True) if self.returns and b"\r" in read else (read,):
                self.number += 1
                self.offset += len(line)
                yield decode(line, self.name, self.number, Path(self.name))


class Reader:
    """Reads the chunks of a file in any order; fastest in ascending order. Close it, or use it as a context."""

    def __init__(self, found: Found) -> None:
        self.found = found
        self._file: Any = None
        self._tables: Iterator[Any] = iter(())  # chunks of a Parquet file
        self._next = -1  # the number of the next chunk

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def read(self, number: int) -> Table:
        """Read a chunk, with all columns of the file.

        Raises:
            FileError: the file cannot be read, or has changed since it was scanned.
        """
        found, chunk = self.found, self.found.chunks[number]
        name = str(found.path)
        if find_suffix(found.path) == ".parquet":
            return self._read_parquet(number, chunk)
        with readable(found.path):
            if self._file is None:
                with encoded_as(found.encoding):
                    self._file = opened(found.path)
            self._file.seek(chunk.offset)
            is_text = find_suffix(found.path) == LINES
            lines = _Lines(self._file, name, chunk, returns=is_text or found.layout is not None)
            if is_text:
                texts = [line.rstrip("\r\n") for line in islice(lines, chunk.rows)]
                numbers = list(range(chunk.line, chunk.line + len(texts)))
                table = Table(name, {"text": texts}, numbers, "line", plain=True)
            elif found.layout is None:
                rows = list(islice(_objects(lines), chunk.rows))
                numbers = [line for line, _ in rows]
                table = Table(name, transposed([row for _, row in rows], found.columns), numbers, "line")
            else:
                cells = separated.rows(lines, found.layout, name, line=chunk.line)
                table = of_rows(name, found.layout, list(islice(cells, chunk.rows)))
        return self._checked(table, chunk)

    def _read_parquet(self, number: int, chunk: Chunk) -> Table:
        path = self.found.path
        if self._file is None:
            self._file = _parquet(path)
        with arrow_errors(path):
            if self._next != number:
                self._tables = _tables(self._file, self.found.chunks[number:])
            table = next(self._tables)
        self._next = number + 1
        names, coded = self.found.columns, classes(table.schema)
        columns = {name: decoded(cells) for name, (_, cells) in zip(names, from_arrow(table), strict=True)}
        arrow = {name: column for name, column in zip(names, table.columns, strict=True) if name not in coded}
        numbers = list(range(chunk.first + 1, chunk.first + 1 + table.num_rows))
        return self._checked(Table(str(path), columns, numbers, arrow=arrow), chunk)

    def _checked(self, table: Table, chunk: Chunk) -> Table:
        if len(table.numbers) != chunk.rows:
            raise FileError("{path}: has changed while it was read; begin again with --restart", path=self.found.path)
        return table


def opened(path: Path) -> IO[bytes]:
    """Open a text file to read its bytes, unpacked, as UTF-8. A file in another encoding is held in memory."""
    if find_encoding() == "utf-8":
        return gzip.open(path) if is_packed(path) else path.open("rb")  # type: ignore[return-value]
    with encoded_as("utf-8"), opened(path) as file:
        data = file.read()
    return io.BytesIO(recode(data, str(path)))


def _parquet(path: Path) -> Any:
    from pyarrow import parquet

    with readable(path):
        path.open("rb").close()
    with arrow_errors(path):
        return parquet.ParquetFile(path, buffer_size=1 << 20)  # otherwise it holds a whole column of a row group


def _batches(file: Any, first: int) -> Iterator[Any]:
    """Yield the rows of a Parquet file from row `first` on, as record batches."""
    group = 0
    while group < file.metadata.num_row_groups and first >= (rows := file.metadata.row_group(group).num_rows):
        first -= rows
        group += 1
    for batch in file.iter_batches(batch_size=_BATCH, row_groups=list(range(group, file.metadata.num_row_groups))):
        if first < batch.num_rows:
            yield batch.slice(first)
        first = max(first - batch.num_rows, 0)


def _tables(file: Any, chunks: Sequence[Chunk]) -> Iterator[Any]:
    """Yield the rows of consecutive chunks, as one Arrow table for each chunk."""
    import pyarrow

    batches = _batches(file, chunks[0].first)
    held: list[Any] = []
    for chunk in chunks:
        while sum(batch.num_rows for batch in held) < chunk.rows and (batch := next(batches, None)) is not None:
            held.append(batch)
        table = pyarrow.Table.from_batches(held, file.schema_arrow)
        yield table.slice(0, chunk.rows)
        held = table.slice(chunk.rows).to_batches()
