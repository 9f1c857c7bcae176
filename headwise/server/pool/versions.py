"""Versions of a model: as TensorFlow Serving has it, folders that are called by their numbers, beside one another."""

from __future__ import annotations

from pathlib import Path

from headwise.errors import RequestRefused

ONLY = "1"  # the version of a model that has no others


def versions(path: Path) -> dict[str, Path]:
    """The models at a path, by version, the oldest first.

    A folder whose subfolders are numbers, and that has no files of its own, is as many versions; any other folder, or
    file, is version "1", and so is what is not there: whoever opens it knows whether that can be.

    Raises:
        RequestRefused: "bad_input", a folder that cannot be read.
    """
    try:
        if not path.expanduser().is_dir():
            return {ONLY: path}
        path = path.expanduser()
        entries = [entry for entry in path.iterdir() if not entry.name.startswith(".")]
    except OSError as error:
        raise RequestRefused("bad_input", f"cannot read {path}: {error.strerror or error}") from error
    numbered = {
        int(entry.name): entry
        for entry in entries
        if entry.name.isascii() and entry.name.isdecimal() and entry.is_dir()
    }
    if not numbered or any(entry.is_file() for entry in entries):
        return {ONLY: path}
    return {str(number): numbered[number] for number in sorted(numbered)}
