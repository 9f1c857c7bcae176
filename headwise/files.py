"""Writes a file beside its target and renames it: a reader sees the old file or the new one, never half a file.

Folders are written in the same way. `parsed` reads the text of a JSON or YAML file of unknown origin.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import json
import os
import re
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from platform import node
from typing import Any

from headwise.errors import CheckpointError, FileError

_count = itertools.count()
_writing: set[str] = set()  # the names of the unfinished files and folders that this process is writing
# Windows refuses to replace a file while somebody reads it. These are the seconds to wait before each new attempt.
_PAUSES = (0.01, 0.03, 0.1, 0.3, 1.0) if os.name == "nt" else ()


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a new path beside `path` to write to. At the end this file replaces `path`; after an error it is removed.

    Any number of threads and processes may write to one path at once: each has its own new file, and the file of the
    last one to finish stays. Files that a killed process left behind are removed by the next process that writes to
    that path; on Windows, only if it has the same process id.

    OSError passes through, for the caller to say what could not be written. On Windows this is a PermissionError where
    another program holds `path` open for longer than a second.
    """
    part = _beside(path, "part")
    try:
        yield part
        _replace(part, path)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        _writing.discard(part.name)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Do the same as `replacing`, but turn an OSError into a FileError that names the file."""
    try:
        with replacing(path) as part:
            yield part
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}. Choose another file") from error


@contextlib.contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder to write to, which replaces `path` at the end, as in `replacing`.

    An old folder at `path` is first renamed, then removed. A process that is killed between the two renames leaves
    nothing at `path`: `restore_folder` gives the old one back.
    """
    restore_folder(path)
    part, old = _beside(path, "part"), _beside(path, "old")
    try:
        part.mkdir(parents=True)
        yield part
        if path.exists():
            os.replace(path, old)
        try:
            os.replace(part, path)
        except OSError:
            if old.exists():
                os.replace(old, path)
            raise
    finally:
        for each in (part, old):
            shutil.rmtree(each, ignore_errors=True)
            _writing.discard(each.name)


def restore_folder(path: Path) -> None:
    """Give `path` back its old folder, if a process was killed while it replaced it. Does nothing if `path` exists."""
    if path.exists():
        return
    path = path.resolve()
    for left in _left_behind(path, "old")[:1]:
        os.replace(left, path)


def _beside(path: Path, kind: str) -> Path:
    """Return a new path beside `path`. Files that killed processes left there are removed first."""
    for left in _left_behind(path, kind):
        with contextlib.suppress(OSError):
            left.unlink() if left.is_file() else shutil.rmtree(left)
    beside = path.with_name(f"{_prefix(path)}{os.getpid()}-{next(_count)}.{kind}")
    _writing.add(beside.name)
    return beside


def _prefix(path: Path) -> str:
    return f".{path.name}.{zlib.crc32(node().encode()):08x}-"


def settle(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk: then a crash of the machine cannot lose it.

    OSError passes through for a file. For a folder it is ignored: not every system can wait for a folder.
    """
    if path.is_dir():
        with contextlib.suppress(OSError):
            folder = os.open(path, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        return
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def damaged(part: Path) -> FileError:
    """Make the error for a finished part of a file in which other bytes are found than were written."""
    return FileError(f"{part}: is damaged. Delete it, and run the same command again, which computes it again")


def check_there(path: Path) -> None:
    """Raise FileError if there is no such file; the message has the most similar name in its folder."""
    if path.exists():
        return
    there = os.listdir(path.parent) if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, there, n=1, cutoff=0.7)
    raise FileError(f"there is no file {path}{f'. Did you mean {path.with_name(near[0])}?' if near else ''}")


def parsed(load: Callable[[str], Any], text: str) -> Any:
    """Read a text by `load` (`json.loads` or `yaml.safe_load`). ValueError also for data nested too deeply."""
    try:
        return load(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file of a checkpoint. Raises CheckpointError if the file has no object."""
    try:
        content = parsed(json.loads, path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as cause:  # ValueError: bytes that are not UTF-8, or text that is not JSON
        raise CheckpointError(f"cannot read {path}: expected JSON ({cause})") from cause
    if not isinstance(content, dict):
        raise CheckpointError(f"cannot read {path}: expected a JSON object. Received: {type(content).__name__}")
    return content


def _replace(part: Path, path: Path) -> None:
    for pause in _PAUSES:
        with contextlib.suppress(PermissionError):
            return os.replace(part, path)
        time.sleep(pause)
    os.replace(part, path)


def _left_behind(path: Path, kind: str) -> list[Path]:
    """Find the unfinished files of `path` whose writers, processes of this machine, do not run any more."""
    found, prefix = [], _prefix(path)
    with contextlib.suppress(OSError):  # no such folder, or one that cannot be read: writing says so
        for name in os.listdir(path.parent):
            if name.startswith(prefix) and name not in _writing:
                process = re.fullmatch(rf"(\d+)-\d+\.{kind}", name.removeprefix(prefix))
                if process and not _runs(int(process[1])):
                    found.append(path.with_name(name))
    return found


def _runs(process: int) -> bool:
    """Whether a process with this number runs. False for this process: it knows the files that it is writing itself."""
    if process == os.getpid():
        return False
    if os.name == "nt":  # os.kill would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OverflowError, PermissionError):  # not the number of a process; a process of another user
        return True
    return True
