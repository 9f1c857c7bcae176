"""Writes columns to a file: CSV, TSV, JSON lines, JSON or Parquet, by its suffix; whole, or in parts that are joined.

A single column of vectors can also be written as .npy, in parts.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from headwise.errors import ArgumentError, brief, shortened
from headwise.files import compute_checksum, damaged, settle, writing

Columns = Mapping[str, Sequence[Any]]

STREAMED = (".csv", ".tsv", ".jsonl", ".parquet")  #: suffixes of files that can be written in parts
VECTORS = (".npy", ".parquet")  #: suffixes of files for vectors
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_INSTEAD = 'write JSON lines instead: a name that ends in ".jsonl" (vectors alone: ".npy")'


def write_table(path: Path, columns: Columns) -> None:
    """Write columns of one length. It is written completely or not at all. `read_table` reads the same rows from it.

    Raises:
        ArgumentError: an unsupported suffix; a column with values that Parquet cannot have in one column.
        FileError: it cannot be written.
    """
    write = choose_writer(path)
    with writing(path) as part:
        write(part, columns)


def write_part(
    path: Path, columns: Columns, arrow: Columns, settled: Callable[[str], None] = lambda checksum: None
) -> None:
    """Write some of the rows of a file, for `join_parts` to join. It is written completely or not at all.

    Args:
        path: ends in one of `STREAMED`; or in .npy, for a single column, of vectors.
        arrow: Arrow arrays of some columns, whose types Parquet keeps.
        settled: called with the checksum of the file when it is on the disk, before it gets its name.

    Raises:
        ArgumentError: a column with values that Parquet cannot have in one column.
        FileError: the file cannot be written.
    """
    suffix = path.suffix.lower()
    with writing(path) as part:
        if suffix == ".npy":
            (vectors,) = columns.values()
            _array_file(part, vectors)
        elif suffix == ".parquet":
            _parquet(part, {**columns, **arrow})
        elif suffix in _SEPARATORS:
            _separated(part, _zip_rows(columns), _SEPARATORS[suffix])
        else:
            _WRITERS[suffix](part, columns)
        settle(part)
        settled(compute_checksum(part))


def join_parts(target: Path, parts: Sequence[Path], columns: Sequence[str]) -> None:
    """Write one file from parts that `write_part` wrote, in their order. Only one of them is in memory at a time.

    The file is safely on the disk at the end, so that the parts may be deleted.

    A column that is empty in some parts, or has integers in some and fractions in others, gets the type that fits
    all of them.

    Raises:
        ArgumentError: parts with values that Parquet cannot have in one column.
        FileError: the file cannot be written, or a part is damaged.
    """
    suffix = target.suffix.lower()
    with writing(target) as whole:
        if suffix == ".parquet":
            _join_parquet(whole, parts)
        elif suffix == ".npy":
            _join_arrays(whole, parts)
        else:
            _join_lines(whole, parts, [columns] if suffix in _SEPARATORS else [], _SEPARATORS.get(suffix, ""))
        settle(whole)
    settle(target.parent)


def schema_with(part: Path, schema: Any) -> Any:
    """Return the Arrow schema that fits this Parquet part and the parts before it, whose schema is `schema` (or None).

    Raises:
        ArgumentError: no schema fits them.
        FileError: the part is damaged.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        own = parquet.read_schema(part)
    except (pyarrow.ArrowException, OSError) as error:
        raise damaged(part) from error
    if schema is None or own == schema:
        return own
    with _one_type():
        return pyarrow.unify_schemas([schema, own], promote_options="permissive")


def choose_writer(path: Path) -> Callable[[Path, Columns], None]:
    """Return the function that writes a file with this name. Raises ArgumentError if no function can."""
    if path.suffix.lower() not in _WRITERS:
        raise ArgumentError(
            "{path}: expected a name that ends in {suffixes}. Received: {name}",
            path=path,
            suffixes=", ".join(_WRITERS),
            name=path.name,
        )
    return _WRITERS[path.suffix.lower()]


def check_vectors(path: Path) -> None:
    """Raise ArgumentError if vectors cannot be written to a file with this name."""
    if path.suffix.lower() not in VECTORS:
        raise ArgumentError(
            "{path}: expected a name that ends in {suffixes}. Received: {name}",
            path=path,
            suffixes=" or ".join(VECTORS),
            name=path.name,
        )


def _separated(path: Path, rows: Iterable[Sequence[Any]], separator: str) -> None:
    with path.open("w", encoding="utf-8", newline="") as out:
        table = csv.writer(_Lines(out), delimiter=separator, lineterminator="\r\n")
        table.writerows([_cell(cell) for cell in row] for row in rows)


class _Lines:
    """Ends each row of `csv.writer` by a new line. A cell with a carriage return is quoted only if rows end by one."""

    def __init__(self, file: TextIO) -> None:
        self.file = file

    def write(self, row: str) -> None:
        self.file.write(row.removesuffix("\r\n") + "\n")


def _with_header(separator: str) -> Callable[[Path, Columns], None]:
    def write(path: Path, columns: Columns) -> None:
        _separated(path, [list(columns), *_zip_rows(columns)], separator)

    return write


def _zip_rows(columns: Columns) -> Iterator[tuple[Any, ...]]:
    return zip(*columns.values(), strict=True)


def _cell(cell: Any) -> Any:
    if cell is None:
        return ""
    return json.dumps(cell, ensure_ascii=False, default=_text) if isinstance(cell, list | dict | bytes) else cell


def _text(cell: Any) -> str:
    """Convert a cell that JSON does not have, such as a date, to text."""
    if isinstance(cell, bytes):
        raise ArgumentError(
            "expected texts and numbers. Received: {cell}. Write bytes to a .parquet file", cell=brief(cell)
        )
    return str(cell)


def _json_lines(path: Path, columns: Columns) -> None:
    with path.open("w", encoding="utf-8") as out:
        for row in _zip_rows(columns):
            out.write(json.dumps(_object(columns, row), ensure_ascii=False, default=_text) + "\n")


def _json(path: Path, columns: Columns) -> None:
    rows = [_object(columns, row) for row in _zip_rows(columns)]
    path.write_text(json.dumps(rows, ensure_ascii=False, indent=1, default=_text) + "\n", encoding="utf-8")


def _object(columns: Columns, row: Sequence[Any]) -> dict[str, Any]:
    """Return a row as an object for JSON: NaN and infinity, which JSON lacks, become None."""
    return {name: _finite(cell) for name, cell in zip(columns, row, strict=True)}


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list) else value


def _parquet(path: Path, columns: Columns) -> None:
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({name: _array(name, cells) for name, cells in columns.items()})
    with _one_type():
        parquet.write_table(table, path)


@contextlib.contextmanager
def _one_type() -> Iterator[None]:
    """A context that turns Arrow's errors about values that have no type in common into an ArgumentError."""
    import pyarrow

    try:
        yield
    except pyarrow.ArrowException as error:
        said = shortened(" ".join(str(error).split()), 200)
        raise ArgumentError(f"Parquet has one type a column. Received: {said}; {_INSTEAD}") from error


def _array(name: str, cells: Sequence[Any]) -> Any:
    """Convert a column to an Arrow array. Raises ArgumentError if its values have no common type."""
    import pyarrow

    if isinstance(cells, pyarrow.Array | pyarrow.ChunkedArray):
        return cells
    kinds = sorted({type(cell).__name__ for cell in cells if cell is not None})
    said = f"column {name!r}: Parquet has one type a column. Received: {', '.join(kinds)}; {_INSTEAD}"
    if "bool" in kinds and len(kinds) > 1:  # among fractions Arrow reads true as 1.0
        raise ArgumentError(said)
    try:
        return pyarrow.array(cells)
    except (pyarrow.ArrowException, OverflowError) as error:
        raise ArgumentError(said) from error


def _array_file(path: Path, vectors_NM: Any) -> None:
    import numpy as np

    with path.open("wb") as out:
        np.save(out, np.ascontiguousarray(vectors_NM), allow_pickle=False)


def _join_arrays(path: Path, parts: Sequence[Path]) -> None:
    """Join .npy files: each is a header with the shape, then the numbers."""
    import numpy as np

    def vectors(part: Path) -> Any:
        try:
            return np.load(part, mmap_mode="r")
        except (ValueError, EOFError) as error:
            raise damaged(part) from error

    header = np.lib.format.header_data_from_array_1_0(vectors(parts[0]))
    rows = sum(len(vectors(part)) for part in parts)
    with path.open("wb") as out:
        np.lib.format.write_array_header_1_0(out, {**header, "shape": (rows, *header["shape"][1:])})
        for part in parts:
            out.write(vectors(part).data)


def _join_lines(path: Path, parts: Sequence[Path], head: Sequence[Sequence[str]], separator: str) -> None:
    _separated(path, head, separator) if head else path.touch()
    with path.open("ab") as out:
        for each in parts:
            with each.open("rb") as part:
                shutil.copyfileobj(part, out, 1 << 20)


def _join_parquet(path: Path, parts: Sequence[Path]) -> None:
    import pyarrow
    from pyarrow import parquet

    schema = None
    for part in parts:
        schema = schema_with(part, schema)
    with parquet.ParquetWriter(path, schema) as out:
        for part in parts:
            try:
                table = parquet.read_table(part, partitioning=None)
            except (pyarrow.ArrowException, OSError) as error:
                raise damaged(part) from error
            with _one_type():
                out.write_table(table.cast(schema))


_WRITERS: dict[str, Callable[[Path, Columns], None]] = {
    ".csv": _with_header(","),
    ".tsv": _with_header("\t"),
    ".jsonl": _json_lines,
    ".json": _json,
    ".parquet": _parquet,
}
