"""Reads two text files whose lines with the same number belong together, as in corpora of translations."""

from __future__ import annotations

import hashlib
from pathlib import Path

from headwise.errors import ArgumentError
from headwise.tasks.rows.chunks import opened
from headwise.tasks.rows.encodings import decode
from headwise.tasks.rows.sources import readable
from headwise.tasks.rows.tables import Data


def are_aligned(source: object) -> bool:
    """Return whether `source` names two files, separated by a comma: "train.en,train.de"; each may end in .gz."""
    if not isinstance(source, str) or source.count(",") != 1 or Path(source).exists():
        return False
    first, second = (Path(part.strip()) for part in source.split(","))
    return first.is_file() or second.is_file()


def read_aligned(source: str) -> Data:
    """Read two aligned files as a table with the columns "source" and "target".

    A line that is empty in one of the files is left out.

    Raises:
        FileError: one of the files cannot be read.
        ArgumentError: they have different numbers of lines, or no lines.
    """
    paths = [Path(part.strip()) for part in source.split(",")]
    contents = [_read(path) for path in paths]
    first, second = ([line.rstrip("\r") for line in text.removesuffix("\n").split("\n")] for text in contents)
    if len(first) != len(second):
        raise ArgumentError(
            f"{source}: expected as many lines in both files. Received: {len(first)} in {paths[0].name} and "
            f"{len(second)} in {paths[1].name}"
        )
    fingerprint = hashlib.sha256("\0".join(contents).encode()).hexdigest()
    numbers = list(range(1, len(first) + 1))
    data = Data(source, {"source": first, "target": second}, numbers, fingerprint=fingerprint, unit="line")
    empty = {
        i: "an empty line" for i, pair in enumerate(zip(first, second, strict=True)) if not all(map(str.strip, pair))
    }
    return data.without(empty)


def _read(path: Path) -> str:
    with readable(path), opened(path) as file:
        return decode(file.read(), str(path))
