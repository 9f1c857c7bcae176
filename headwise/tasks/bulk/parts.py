"""The parts of a file that is being written: in a folder beside it, until all are there and are joined.

    .out.parquet.parts/
        journal.json       which file, run and chunks the parts are of
        000000.parquet     the first chunk with its answers; renamed into place when it is complete
        000000.json        its columns, and how many of its rows have no answer; written before it

A part that is there is complete, so whatever ended a process, another goes on with the parts that are missing.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headwise.errors import ArgumentError, FileError
from headwise.files import replacing
from headwise.tasks.bulk.answered import Note, answer, sum_up
from headwise.tasks.rows.chunks import Found, Reader
from headwise.tasks.rows.written import join_parts, write_part
from headwise.tasks.task import Task
from headwise.tasks.training.run import CONFIG, WEIGHTS

_FORMAT = 1
_JOURNAL, _LOCK = "journal.json", "lock"


@dataclass(frozen=True)
class Work:
    """What is to be done: chunks of a file to be answered by a run. Any process that has the files can do any part.

    Args:
        wanted: the columns that the task has names for.
        out: the file that the parts will be.
    """

    run: Path
    found: Found
    wanted: tuple[str, ...]
    out: Path

    def part(self, number: int) -> Path:
        return folder_of(self.out) / f"{number:06d}{self.out.suffix.lower()}"

    def note(self, number: int) -> Path:
        return folder_of(self.out) / f"{number:06d}.json"

    def missing(self) -> list[int]:
        """The numbers of the parts that are not there yet."""
        return [number for number in range(len(self.found.chunks)) if not self.part(number).exists()]

    def do(self, number: int, task: Task[Any], reader: Reader) -> None:
        """Answer a chunk and write its part.

        Raises:
            FileError, ArgumentError: it cannot be read, used or written.
        """
        answered = answer(task, table := reader.read(number), table, self.wanted)
        _write_json(self.note(number), asdict(answered.note()))
        write_part(self.part(number), answered.columns, answered.arrow)


def folder_of(out: Path) -> Path:
    """Where the parts of a file are."""
    return out.with_name(f".{out.name}.parts")


def begin(run: Path, path: Path, out: Path, chunk: int, look: Callable[[], Found]) -> Found:
    """What is known of a file whose parts are there, or of one that is begun: its journal is then written.

    Args:
        look: looks through the file, if nobody did yet.

    Raises:
        ArgumentError: what was begun is of another file, run or chunk.
        FileError: its journal cannot be read or written.
    """
    folder = folder_of(out)
    _clear(out)
    about = {"format": _FORMAT, "chunk": chunk, **_state_of(path), "run": _digest(run)}
    try:
        journal = json.loads((folder / _JOURNAL).read_text(encoding="utf-8"))
    except FileNotFoundError:
        _empty(folder)
        found = look()
        _write_json(folder / _JOURNAL, {**about, "found": found.to_json()})
        return found
    except (OSError, ValueError) as error:
        raise FileError(f"{folder / _JOURNAL}: cannot be read: {error}; --restart begins again") from error
    if differs := [name for name, value in about.items() if journal.get(name) != value]:
        was = {
            "chunk": f"--chunk {journal.get('chunk')}",
            "path": f"another file, {journal.get('path')}",
            "size": f"{path} before it was changed",
            "modified": f"{path} before it was changed",
            "run": f"another run than {run} is now",
        }
        raise ArgumentError(
            f"{folder} has the parts of work that was begun with {was.get(differs[0], 'another version of headwise')}: "
            "go on with that, or add --restart to delete them and begin again"
        )
    return Found.from_json(path, journal["found"])


def join(work: Work) -> tuple[int, tuple[str, ...]]:
    """Write the file of all parts, and delete them.

    Returns:
        How many rows it has, and which have no answer, a sentence for each reason.

    Raises:
        ArgumentError: no row has an answer; columns that Parquet cannot have.
        FileError: a part cannot be read, or the file not be written.
    """
    numbers = range(len(work.found.chunks))
    notes = (Note(**json.loads(work.note(number).read_text(encoding="utf-8"))) for number in numbers)
    try:
        columns, rows, sentences = sum_up(str(work.found.path), notes)
    except ArgumentError:
        delete(work.out)
        raise
    join_parts(work.out, [work.part(number) for number in numbers], columns)
    delete(work.out)
    return rows, sentences


def delete(out: Path) -> None:
    """Delete the parts of a file."""
    shutil.rmtree(folder_of(out), ignore_errors=True)
    _clear(out)


def _clear(out: Path) -> None:
    """Delete what a process that was killed while it joined the parts has left."""
    for stray in out.parent.glob(f".{glob.escape(out.name)}.*.part"):
        stray.unlink(missing_ok=True)


@contextlib.contextmanager
def alone(out: Path, *, restart: bool = False) -> Iterator[None]:
    """The folder of the parts, which no other process uses meanwhile; it is gone at the end if it has no part.

    Args:
        restart: whether to delete what is in it.

    Raises:
        ArgumentError: another process uses it.
        FileError: it cannot be made.
    """
    folder = folder_of(out)
    try:
        folder.mkdir(exist_ok=True)
        lock = (folder / _LOCK).open("a")
    except OSError as error:
        raise FileError(f"{folder}: cannot be written: {(error.strerror or str(error)).lower()}") from error
    with lock:
        _lock(lock, out)
        if restart:
            _empty(folder)
        try:
            yield
        finally:
            if not any(_is_part(path, out) for path in folder.glob("*")):
                delete(out)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name != _LOCK:
            path.unlink()


def _is_part(path: Path, out: Path) -> bool:
    return path.suffix == out.suffix.lower() and path.stem.isdecimal()


def _lock(lock: Any, out: Path) -> None:
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ArgumentError(f"{out}: another process is writing it; wait for it, or choose another file") from error
    except OSError:  # a file system that has no locks
        return


def _state_of(path: Path) -> dict[str, Any]:
    """What changes when a file does."""
    try:
        state = path.stat()
    except OSError as error:
        raise FileError(f"{path}: no such file; expected a file to read") from error
    return {"path": str(path), "size": state.st_size, "modified": state.st_mtime_ns}


def _digest(run: Path) -> str:
    """Of the weights of a run, and of its options and what else it learned."""
    found = hashlib.sha256()
    for name in (CONFIG, WEIGHTS):
        with (run / name).open("rb") as file:
            while block := file.read(1 << 20):
                found.update(block)
    return found.hexdigest()


def _write_json(path: Path, content: dict[str, Any]) -> None:
    try:
        with replacing(path) as part:
            part.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {(error.strerror or str(error)).lower()}") from error
