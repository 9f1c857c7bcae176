"""The place of a target as it is typed, `path.py:Class` or `package.module:Class`. Imports nothing heavy: the command
looks whether the file is there before it needs torch.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable
from pathlib import Path

from headwise.errors import DoctorError
from headwise.language import Sentence

OF_SPEC = ("--spec", "heads=8")  # for `setting_of`


def place_of(text: str, folder: Path | None = None) -> tuple[str, str]:
    """The file or module, and what is called there. DoctorError if a part is missing, or the file is not there."""
    place, called = _split(text)
    if place.endswith(".py") and folder is not None and folder.resolve() != Path.cwd().resolve():
        place = str(folder / Path(place).expanduser())
    if not place or not called:
        raise DoctorError(_unclear(place or called))
    if place.endswith(".py") and not (file := Path(place).expanduser()).is_file():
        raise DoctorError(_no_file(file))
    return place, called


def setting_of(text: str, option: str = "--set", example: str = "d_model=64") -> tuple[str, str]:
    """The name and the value of `name=value`. DoctorError for anything else."""
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals or not all(part.isidentifier() for part in name.split(".")):
        told = Sentence("{option}: expected name=value, as in {option} {example}. Received: {text!r}")
        raise DoctorError(told.format(option=option, example=example, text=text))
    return name, value.strip()


def nearest(name: str, there: Iterable[str]) -> str | None:
    """The name that was probably intended."""
    folded = {each.lower(): each for each in there}
    found = difflib.get_close_matches(name.lower(), folded, n=1)
    return folded[found[0]] if found else None


def _split(text: str) -> tuple[str, str]:
    """The file or module, and the rest; a colon may also be that of a drive, or stand in the arguments."""
    head, bracket, rest = text.partition("(")
    place, colon, name = head.rpartition(":")
    if colon and len(place) == 1 and name.startswith(("\\", "/")):
        place, name = head, ""
    return (place, name + bracket + rest) if colon else (head, "")


def _unclear(place: str) -> Sentence:
    path = Path(place).expanduser()
    if path.is_file() and path.suffix == ".py":
        classes = _classes_in(path)
        there = Sentence(" (it has: {names})").format(names=", ".join(classes)) if classes else ""
        return Sentence("which class of {place}? Write {place}:{name}{there}").format(
            place=place, name=classes[0] if classes else "MyAttention", there=there
        )
    if path.suffix == ".py":
        return _no_file(path)
    told = Sentence("expected my_model.py:MyAttention or package.module:MyAttention. Received: {place!r}")
    return told.format(place=place)


def _no_file(path: Path) -> Sentence:
    if path.is_dir():
        return Sentence("{path} is a folder; expected a Python file").format(path=path)
    folder = path.parent
    if not folder.is_dir():
        return Sentence("no such file: {path}; there is no folder {folder}").format(path=path, folder=folder)
    near = nearest(path.name, [x.name for x in folder.glob("*.py")])
    if near:
        return Sentence("no such file: {path}; did you mean {near}?").format(path=path, near=folder / near)
    return Sentence("no such file: {path}; expected a Python file").format(path=path)


def _classes_in(path: Path) -> list[str]:
    """The classes of a file, those with attention in their name first, without running it."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError, OSError):
        return []
    names = [x.name for x in body if isinstance(x, ast.ClassDef)]
    return sorted(names, key=lambda name: "att" not in name.lower())
