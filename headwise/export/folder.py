"""The folder of an export. It is written beside its final path, then renamed; it replaces nothing but an old export."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headwise import files
from headwise.errors import ArgumentError, CheckpointError, FileError, HeadwiseError
from headwise.export.manifest import NAME, read


def check_free(out: Path) -> None:
    """Check that an export may be written here: the path is unused, an empty folder, or an old export.

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
    """A temporary folder beside `out` to write to. On success it replaces `out`, else it is deleted and `out` stays.

    Raises:
        ArgumentError: as for `check_free`.
        FileError: something cannot be written.
    """
    check_free(out)
    out = out.resolve()  # a symbolic link stays; its target is replaced
    try:
        with files.replacing_folder(out) as part:
            yield part
    except HeadwiseError:
        raise
    except OSError as cause:
        raise FileError(f"cannot write {out}: {cause}") from cause
