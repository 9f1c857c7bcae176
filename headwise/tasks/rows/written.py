"""Columns written to a file: CSV, TSV, JSON lines, JSON or Parquet, by its suffix."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headwise.errors import ArgumentError, FileError
from headwise.files import replacing

Columns = Mapping[str, Sequence[Any]]


def write_table(path: Path, columns: Columns) -> None:
    """Write columns of one length. The file is there whole, or not at all. `read_table` reads the same rows from it.

    Raises:
        ArgumentError: a suffix of another kind of file.
        FileError: it cannot be written.
    """
    write = writer_of(path)
    try:
        with replacing(path) as part:
            write(part, columns)
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {(error.strerror or str(error)).lower()}") from error


def writer_of(path: Path) -> Callable[[Path, Columns], None]:
    """What writes a file of this name. Raises ArgumentError if nothing does."""
    if path.suffix.lower() not in _WRITERS:
        raise ArgumentError(f"{path}: expected a name that ends in {', '.join(_WRITERS)}. Received: {path.name}")
    return _WRITERS[path.suffix.lower()]


def _separated(separator: str) -> Callable[[Path, Columns], None]:
    def write(path: Path, columns: Columns) -> None:
        with path.open("w", encoding="utf-8", newline="") as out:
            table = csv.writer(out, delimiter=separator, lineterminator="\n")
            table.writerow(columns)
            table.writerows([_cell(cell) for cell in row] for row in zip(*columns.values(), strict=True))

    return write


def _cell(cell: Any) -> Any:
    if cell is None:
        return ""
    return json.dumps(cell, ensure_ascii=False, default=str) if isinstance(cell, list | dict) else cell


def _json_lines(path: Path, columns: Columns) -> None:
    with path.open("w", encoding="utf-8") as out:
        for row in zip(*columns.values(), strict=True):
            out.write(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False, default=str) + "\n")


def _json(path: Path, columns: Columns) -> None:
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    path.write_text(json.dumps(rows, ensure_ascii=False, indent=1, default=str) + "\n", encoding="utf-8")


def _parquet(path: Path, columns: Columns) -> None:
    import datasets

    rows = datasets.Dataset.from_dict({name: list(cells) for name, cells in columns.items()})
    rows.data.to_pandas().to_parquet(path, index=False)  # not to_parquet of datasets, which shows a bar


_WRITERS: dict[str, Callable[[Path, Columns], None]] = {
    ".csv": _separated(","),
    ".tsv": _separated("\t"),
    ".jsonl": _json_lines,
    ".json": _json,
    ".parquet": _parquet,
}
