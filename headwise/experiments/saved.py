"""Writes the effects of patching to a file, and reads them again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headwise.errors import FileError
from headwise.records.tensor_file import TensorFile, parse_json, write_tensors

KEY, VERSION = "headwise patching", "1"
FACTS = ("layers", "labels", "clean", "corrupted", "model", "corrupted_labels", "over")


def save(fields: dict[str, Any], path: str | Path) -> None:
    """Write the fields of a `Patching` to `path`, a safetensors file. FileError if it cannot be written."""
    tensors = {name: fields[name].contiguous() for name in ("effects", "attributed") if fields[name] is not None}
    said = json.dumps({name: fields[name] for name in FACTS})
    write_tensors(Path(path), tensors, {KEY: VERSION, "description": said})


def is_patching(path: Path) -> bool:
    """Return whether a file says that it holds effects of patching; False if it is missing or cannot be read."""
    try:
        return KEY in TensorFile(path).metadata
    except FileError:
        return False


def load(path: str | Path) -> dict[str, Any]:
    """Read the fields of the `Patching` that `save` wrote. FileError if the file is missing, damaged or another one."""
    path = Path(path)
    file = TensorFile(path)
    if file.metadata.get(KEY) != VERSION:
        raise FileError(f"{path} is not a file of patching: expected a file that Patching.save wrote")
    file.check_header()
    file.check_data()
    damaged = f"{path} is damaged: what it says of its effects"
    said = parse_json(file.metadata.get("description", ""), damaged)
    try:
        said = {"corrupted_labels": [], "over": "heads"} | said  # earlier files do not have them
        fields = {name: said[name] for name in FACTS}
        fields |= {name: tuple(fields[name]) for name in ("layers", "labels", "corrupted_labels")}
        attributed = file["attributed"] if "attributed" in file else None  # noqa: SIM401 (it has no `get`)
        return fields | {"effects": file["effects"], "attributed": attributed}
    except (KeyError, TypeError) as error:
        raise FileError(f"{damaged} does not fit together: {error}") from error
