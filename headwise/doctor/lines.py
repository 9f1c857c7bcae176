"""Lines of the user's code: that of a running operation, of an error, of a stack; and those of a class."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from headwise.doctor.finding import Where

_DOCTOR = Path(__file__).resolve().parent
_HEADWISE = _DOCTOR.parent
# Without an import: `--isolate` imports torch in another process.
_TORCH = Path(getattr(importlib.util.find_spec("torch"), "origin", None) or "torch").resolve().parent
_STDLIB = Path(sysconfig.get_path("stdlib")).resolve()
# Frames of these stand between an operation and the code that called it.
_LISTENERS = (_DOCTOR / "reading", _DOCTOR / "probing" / "listen.py", _DOCTOR / "comparing" / "recording.py")


@functools.cache  # asked of every frame of every call that fails
def is_users(file: str) -> bool:
    """Whether a file is the user's or a model library's: not one of headwise, torch, Keras or Python itself."""
    if file.startswith("<"):
        return False
    path = Path(file).resolve()
    if path.is_relative_to(_HEADWISE) or path.is_relative_to(_TORCH):
        return False
    in_packages = [i for i, part in enumerate(path.parts) if part in ("site-packages", "dist-packages")]
    if in_packages:
        return path.parts[in_packages[-1] + 1 :][:2] != ("keras", "src")
    return not path.is_relative_to(_STDLIB)


def running_line() -> Where | None:
    """The innermost running line of the user's code in the call that is examined.

    Without one, the innermost line of a layer of headwise, torch or Keras; None if there is no such line either.
    """
    frame: FrameType | None = sys._getframe(1)
    layer = None
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            return Where.at(file, frame.f_lineno)
        if _examines(file):
            break
        if layer is None and _has_layers(file):
            layer = Where.at(file, frame.f_lineno)
        frame = frame.f_back
    return layer


@functools.cache
def _examines(file: str) -> bool:
    """Whether a file is the doctor's, and not one that listens to operations: what called it is not examined."""
    path = Path(file).resolve()
    listens = path == Path(__file__).resolve() or any(path.is_relative_to(each) for each in _LISTENERS)
    return path.is_relative_to(_DOCTOR) and not listens


@functools.cache
def _has_layers(file: str) -> bool:
    path = Path(file).resolve()
    if path.is_relative_to(_HEADWISE):
        return not path.is_relative_to(_DOCTOR) and path.name != "as_torch.py"
    return path.is_relative_to(_TORCH / "nn") or "layers" in path.parts


def users_line(places: Iterable[tuple[str, int]]) -> Where | None:
    """The first of some places, each a file and a line, that is in the user's code."""
    return next((Where.at(file, line) for file, line in places if is_users(file)), None)


def last_line(error: BaseException) -> Where | None:
    """The last line of the user's code in an error's traceback."""
    steps = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return users_line(reversed(steps))


@dataclasses.dataclass(frozen=True)
class Source:
    """The text of a class, and where it stands."""

    file: str | None
    line: int
    text: str


def source_of(kind: object) -> Source | None:
    """The source of a class or function; None where there is none."""
    return _read(kind)


@functools.lru_cache(maxsize=1024)  # `inspect` parses the whole file for each question
def _read(kind: Any) -> Source | None:
    try:
        file, (lines, first) = inspect.getsourcefile(kind), inspect.getsourcelines(kind)
    except (OSError, TypeError):
        return None
    return Source(file, first, "".join(lines))


def definition(made: object) -> Where | None:
    """The line where a class or function is defined; None where there is no source."""
    found = source_of(made)
    if found is None or found.file is None:
        return None
    return Where(found.file, found.line, found.text.partition("\n")[0].strip())
