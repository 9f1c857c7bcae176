"""Writes a file beside its target and renames it: a reader sees the old file or the new one, never half a file.

Folders are written in the same way. `parsed` reads the text of a JSON or YAML file of unknown origin. What is ours can
be checked when it is read again: `write_sealed` is for one JSON file, `seal` for the files of a folder.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import itertools
import json
import os
import re
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from platform import node
from typing import Any

from headwise.errors import ArgumentError, CheckpointError, FileError
from headwise.language import Sentence

SUMS = "checksums.json"  #: the checksums of the files of a folder, by name
_SEAL = "seal"  # the name of the checksum of an object inside it

# One of these stands near the beginning of every page of headwise: the second in those of 0.2 and before.
_PAGE = (b'<meta name="generator" content="headwise', b'<div id="page"><p>Opening')
# The same of files of records, profiles, patching effects (their version comes first) and weights.
_TENSORS = (b'{"__metadata__":{"format":"pt","headwise', b'{"__metadata__":{"format":"pt","crc32"')
_count = itertools.count()
_writing: set[str] = set()  # the names of the unfinished files and folders that this process is writing
# Windows refuses to replace a file while somebody reads it. These are the seconds to wait before each new attempt.
_PAUSES = (0.01, 0.03, 0.1, 0.3, 1.0) if os.name == "nt" else ()


def check_page(path: Path) -> None:
    """Raise FileError if a page cannot replace what is at `path`: a file that is no page of headwise, and not empty."""
    _check_own(path, _PAGE)


def check_tensors(path: Path) -> None:
    """Raise FileError if a file of tensors cannot replace what is at `path`: a file of others, and not empty."""
    _check_own(path, _TENSORS)


def _check_own(path: Path, marks: tuple[bytes, ...]) -> None:
    if not os.path.isfile(path):  # of a pipe nothing is to be read; who writes says what is wrong with it
        return
    try:
        with open(path, "rb") as file:
            beginning = file.read(4096)
    except OSError:
        return
    if beginning and not any(mark in beginning for mark in marks):
        raise FileError(
            Sentence(
                "{path} exists, and headwise did not write it. Choose another file, or remove this one first"
            ).format(path=path)
        )


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a new path beside `path` to write to. At the end this file replaces `path`; after an error it is removed.

    A link at `path` stays, and the file that it leads to is replaced. A folder or a device is refused.

    Any number of threads and processes may write to one path at once: each has its own new file, and the file of the
    last one to finish stays. Files that a killed process left behind are removed by the next process that writes to
    that path; on Windows, only if it has the same process id.

    OSError passes through, for the caller to say what could not be written. On Windows this is a PermissionError where
    another program holds `path` open for longer than a second.
    """
    path = Path(os.path.realpath(path))
    if kind := name_kind(path):
        raise OSError(errno.EINVAL, f"expected a file. Received: {kind}")
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
        raise FileError(
            Sentence("cannot write {path}: {cause}. Choose another file").format(
                path=path, cause=error.strerror or error
            )
        ) from error


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


@contextlib.contextmanager
def adding(folder: Path) -> Iterator[Path]:
    """Yield a new folder to write to. At the end each of its files replaces that of the same name in `folder`.

    A process that is killed in between leaves files without checksums, never files with the checksums of others.
    """
    part = _beside(folder / "files", "part")
    try:
        part.mkdir()
        yield part
        names = [path.relative_to(part) for path in part.rglob("*") if path.is_file()]
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).with_name(SUMS).unlink(missing_ok=True)
        for name in sorted(names, key=lambda name: name.name == SUMS):
            _replace(part / name, folder / name)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        _writing.discard(part.name)


@contextlib.contextmanager
def locking(path: Path, busy: str) -> Iterator[None]:
    """A context in which no other process locks this file, which is made if it is missing. It is never waited for.

    OSError passes through.

    Raises:
        ArgumentError: the file is locked; `busy` is the message.
    """
    from filelock import FileLock, Timeout

    with contextlib.ExitStack() as held:
        try:
            held.enter_context(FileLock(path, blocking=False))
        except Timeout as error:
            raise ArgumentError(busy) from error
        yield


def restore_folder(path: Path) -> None:
    """Give `path` back its old folder, if a process was killed while it replaced it. Does nothing if `path` exists."""
    if path.exists():
        return
    path = Path(os.path.realpath(path))
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
    return FileError(
        Sentence("{part}: is damaged. Delete it, and run the same command again, which computes it again").format(
            part=part
        )
    )


def name_kind(path: Path) -> str:
    """Return "a folder" or "a device" for what is neither a file nor missing; otherwise ""."""
    return "" if path.is_file() or not path.exists() else "a folder" if path.is_dir() else "a device"


def read_text(path: Path) -> str:
    """Read a file in UTF-8. OSError or ValueError if it cannot be, and for a device, whose end may never come."""
    if kind := name_kind(path):
        raise OSError(errno.EINVAL, f"expected a file. Received: {kind}")
    return path.read_text(encoding="utf-8")


def compute_checksum(path: Path) -> str:
    """Compute the CRC-32 of a file: 8 hexadecimal digits. OSError passes through."""
    found = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found = zlib.crc32(block, found)
    return f"{found:08x}"


def write_sealed(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object with its own checksum, so that it is on the disk. FileError as for `writing`."""
    with writing(path) as part:
        part.write_text(json.dumps({**content, _SEAL: _checksum(content)}, ensure_ascii=False), encoding="utf-8")
        settle(part)


def read_sealed(path: Path) -> dict[str, Any]:
    """Read the JSON object that `write_sealed` wrote. OSError or ValueError if it is not there, or was changed."""
    content = parsed(json.loads, read_text(path))
    if not isinstance(content, dict) or content.pop(_SEAL, None) != _checksum(content):
        raise ValueError("it is damaged, or was changed after it was written (checksum)")
    return content


def _checksum(content: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(content).encode()):08x}"


def seal(folder: Path) -> None:
    """Write the checksums of all files of a new folder, and of its folders, into it. OSError passes through."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not (path.parent / SUMS).is_file())
    sums = {path.relative_to(folder).as_posix(): compute_checksum(path) for path in paths}
    (folder / SUMS).write_text(json.dumps(sums, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_seal(folder: Path) -> dict[str, str]:
    """Read the checksums that `seal` wrote, by name; {} for a folder without. CheckpointError if they are damaged."""
    return read_json(folder / SUMS) if (folder / SUMS).is_file() else {}


def check_seal(folder: Path, *names: str) -> None:
    """Raise CheckpointError if one of these files (() = all) is not the one that `seal` saw. It may be missing."""
    for name, expected in read_seal(folder).items():
        path = folder / name
        if (not names or name in names) and path.is_file() and (received := compute_checksum(path)) != expected:
            raise CheckpointError(
                Sentence(
                    "{path} is damaged, or was changed after it was written: expected checksum={expected}. "
                    "Received: checksum={received}. Copy or make the folder again, or delete {sums} in it to use "
                    "the file as it is"
                ).format(path=path, expected=expected, received=received, sums=SUMS)
            )


def check_there(path: Path) -> None:
    """Raise FileError if there is no such file; the message has the most similar name in its folder."""
    if path.exists():
        return
    near = similar_path(path)
    hint = Sentence(". Did you mean {path}?").format(path=near) if near else ""
    raise FileError(Sentence("there is no file {path}{hint}").format(path=path, hint=hint))


def similar_path(path: Path, cutoff: float = 0.7) -> Path | None:
    """Return the path in the same folder whose name is most similar, by `difflib`; None if none is similar enough."""
    there = os.listdir(path.parent) if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, there, n=1, cutoff=cutoff)
    return path.with_name(near[0]) if near else None


def parsed(load: Callable[[str], Any], text: str) -> Any:
    """Read a text by `load` (`json.loads` or `yaml.safe_load`). ValueError also for data nested too deeply."""
    try:
        return load(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file of a checkpoint. Raises CheckpointError if the file has no object."""
    try:
        content = parsed(json.loads, read_text(path))
    except (OSError, ValueError) as cause:  # ValueError: bytes that are not UTF-8, or text that is not JSON
        raise CheckpointError(
            Sentence("cannot read {path}: expected JSON ({cause})").format(path=path, cause=cause)
        ) from cause
    if not isinstance(content, dict):
        raise CheckpointError(
            Sentence("cannot read {path}: expected a JSON object. Received: {kind}").format(
                path=path, kind=type(content).__name__
            )
        )
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
