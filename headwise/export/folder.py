"""Writes the folder of an export to a path beside the final one, then renames it; replaces only an old export."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headwise import files
from headwise.errors import ArgumentError, CheckpointError, FileError, HeadwiseError
from headwise.export.manifest import NAME, read


def check_free(out: Path) -> None:
    """Check that an export may be written to `out`: the path does not exist, or is an empty folder or an old export.

    Raises:
        ArgumentError: the path is a file, or a folder with other files.
    """
    if out.exists() and not out.is_dir():
        raise ArgumentError(f"{out} is a file. Expected a new folder for the export")
    if out.is_dir() and any(out.iterdir()):
        try:
            read(out)
        except CheckpointError as cause:
            raise ArgumentError(
                f"{out} is not empty and not an export that could be replaced: it has no {NAME} of headwise. Choose "
                "a new folder"
            ) from cause


@contextmanager
def replacing_folder(out: Path) -> Iterator[Path]:
    """Return a context that yields a temporary folder beside `out`, into which the caller writes the export.

    If the context ends without an error, the temporary folder replaces `out`. After an error the temporary folder is
    deleted, and `out` does not change.

    Raises:
        ArgumentError: as for `check_free`.
        FileError: something cannot be written.
    """
    check_free(out)
    out = Path(os.path.realpath(out))  # a symbolic link stays; its target is replaced
    try:
        with files.replacing_folder(out) as part:
            yield part
    except HeadwiseError:
        raise
    except OSError as cause:
        raise FileError(f"cannot write {out}: {cause}") from cause
