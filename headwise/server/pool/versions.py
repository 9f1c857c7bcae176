"""Versions of a model: subfolders named by numbers, as in TensorFlow Serving."""

from __future__ import annotations

from pathlib import Path

from headwise.errors import RequestRefused

ONLY = "1"  # the version of a model without numbered folders


def versions(path: Path) -> dict[str, Path]:
    """Find the versions of a model in a folder. Returns a dict: version -> path of this version, the oldest first.

    A folder that contains only subfolders named by numbers is a folder of versions. Any other folder or file is version
    "1", and so is a missing path, which fails when it is opened.

    Raises:
        RequestRefused: "bad_input": the folder cannot be read.
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
