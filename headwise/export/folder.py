"""The folder of an export: written beside its place and renamed, and never over something else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headwise.errors import ArgumentError, CheckpointError, FileError
from headwise.export.manifest import NAME, read


def check_free(out: Path) -> None:
    """That an export may be written there: nothing, an empty folder, or an export, which is then replaced.

    Raises:
        ArgumentError: a file, or a folder with something else in it.
    """
    if out.exists() and not out.is_dir():
        raise ArgumentError(f"{out} is a file: expected a new folder for the export")
    if out.is_dir() and any(out.iterdir()):
        try:
            read(out)
        except CheckpointError as cause:
            raise ArgumentError(
                f"{out} is not empty, and no export that could be replaced: there is no {NAME} of headwise in it. Give "
                "a new folder"
            ) from cause


@contextmanager
def replacing_folder(out: Path) -> Iterator[Path]:
    """An empty folder beside `out`, to write to. At the end it takes the place of `out`; if anything goes wrong, it is
    gone, and what was there before stays.

    Raises:
        ArgumentError: as `check_free`.
        FileError: it cannot be made, or cannot take the place.
    """
    check_free(out)
    out = out.resolve()  # a link stays, and what it leads to is replaced
    part, old = (out.with_name(f".{out.name}.{os.getpid()}.{word}") for word in ("part", "old"))
    try:
        try:
            part.mkdir(parents=True)
        except OSError as cause:
            raise FileError(f"cannot write into {out.parent}: {cause.strerror or cause}") from cause
        yield part
        try:
            if out.exists():
                os.replace(out, old)
            os.replace(part, out)
        except OSError as cause:
            if old.exists():
                os.replace(old, out)
            raise FileError(f"cannot write {out}: {cause.strerror or cause}") from cause
    finally:
        for each in (part, old):
            shutil.rmtree(each, ignore_errors=True)
