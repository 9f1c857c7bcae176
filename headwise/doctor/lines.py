"""Lines of the user's code: of a running operation, and of an error."""

from __future__ import annotations

import contextlib
import functools
import linecache
import os
import sys
import sysconfig
from pathlib import Path
from types import FrameType

import torch

from headwise.doctor.finding import Where

_DOCTOR = Path(__file__).resolve().parent
_HEADWISE = _DOCTOR.parent
_TORCH = Path(torch.__file__).resolve().parent
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


def last_line(error: BaseException) -> Where | None:
    """The last line of the user's code in an error's traceback."""
    last = None
    traceback = error.__traceback__
    while traceback is not None:
        if is_users(traceback.tb_frame.f_code.co_filename):
            last = traceback
        traceback = traceback.tb_next
    return None if last is None else line_of(last.tb_frame.f_code.co_filename, last.tb_lineno)


def line_of(file: str, line: int) -> Where:
    """A line as a `Where`, with its code; the file is relative to the working directory if it is inside it."""
    return Where(shown_path(file), line, linecache.getline(file, line).strip())


def shown_path(file: str | os.PathLike[str]) -> str:
    """A file as a person would type it: relative to the working directory if it is inside it."""
    return _shown(os.fspath(file), os.getcwd())


@functools.cache
def _shown(file: str, folder: str) -> str:
    with contextlib.suppress(ValueError, OSError):
        return str(Path(file).resolve().relative_to(Path(folder).resolve()))
    return str(Path(file))
