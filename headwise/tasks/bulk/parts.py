"""The parts of an output file (one for each chunk of the input): kept in a folder until all are complete and joined.

    .out.parquet.parts/
        journal.json       the file, the job and the chunks of the parts
        000000.parquet     the first chunk with the results; renamed when it is complete
        000000.json        its columns, rows without an answer, and the size of 000000.parquet; written before that file

A part with its noted size is complete, so after any interruption another process computes the missing parts. A part of
another size is damaged, and is computed again.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from headwise.errors import ArgumentError, FileError
from headwise.files import damaged, settle, writing
from headwise.tasks.bulk.answered import Answered, Note, sum_up
from headwise.tasks.rows.chunks import Found, Reader
from headwise.tasks.rows.sources import Table
from headwise.tasks.rows.written import join_parts, write_part

_FORMAT = 4
_JOURNAL, _LOCK = "journal.json", "lock"


Answers = Callable[[Table], Answered]  # computes the answers for the rows of a chunk


class Job(Protocol):
    """The computation for each row of a file. A job can be pickled and sent to other processes."""

    def load(self) -> Answers:
        """Load the model, and return the function that computes the answers. Raises HeadwiseError."""

    def state(self) -> Mapping[str, Any]:
        """Return as JSON data all that the results depend on besides the file.

        Existing parts are resumed only if they were computed with the same state.
        """

    def told(self, name: str, was: Any) -> str:
        """Return words for an error: the existing parts were computed when the entry `name` of the state was `was`."""


@dataclass(frozen=True)
class Work:
    """A job for the chunks of a file. Each chunk becomes a part of the output; any process can compute any part.

    Args:
        out: the output file.
    """

    job: Job
    found: Found
    out: Path

    def part(self, number: int) -> Path:
        return name_folder(self.out) / f"{number:06d}{self.out.suffix.lower()}"

    def note(self, number: int) -> Path:
        return name_folder(self.out) / f"{number:06d}.json"

    def missing(self) -> list[int]:
        """Return the numbers of the parts that do not exist or are damaged."""
        return [number for number in range(len(self.found.chunks)) if not self.is_whole(number)]

    def is_whole(self, number: int) -> bool:
        """Return whether the file of a part has the size that was recorded when the part was finished."""
        try:
            return self.part(number).stat().st_size == self.noted(number).size
        except (OSError, ValueError, TypeError):
            return False

    def noted(self, number: int) -> Note:
        """Read the summary of a finished part."""
        return Note(**json.loads(self.note(number).read_text(encoding="utf-8")))

    def describe_rows(self, number: int) -> str:
        """Name the rows of a part for messages, counted from 1; for a text file also the line of the first row."""
        chunk = self.found.chunks[number]
        line = f", from line {chunk.line:,} on" if chunk.line else ""
        return f"{self.found.path}: rows {chunk.first + 1:,} to {chunk.first + chunk.rows:,}{line}"

    def do(self, number: int, answers: Answers, reader: Reader) -> None:
        """Compute the answers for a chunk and write its part.

        Raises:
            FileError, ArgumentError: the chunk cannot be read, used or written.
        """
        answered = answers(reader.read(number))
        note = answered.note()

        def settled(size: int) -> None:
            _write_json(self.note(number), asdict(replace(note, size=size)))

        write_part(self.part(number), answered.columns, answered.arrow, settled)


def name_folder(out: Path) -> Path:
    """Return the path of the folder for the parts of an output file."""
    return out.with_name(f".{out.name}.parts")


def begin(job: Job, path: Path, out: Path, chunk: int, look: Callable[[], Found]) -> Found:
    """Return the chunks of a file: from the journal of existing parts, or found by `look` and written to a new journal.

    Args:
        look: scans the file and finds its chunks; called if there is no journal yet.

    Raises:
        ArgumentError: existing parts belong to another file, job or chunk size.
        FileError: the journal cannot be read or written.
    """
    folder = name_folder(out)
    _clear(out)
    about = {"format": _FORMAT, "chunk": chunk, **_read_state(path), **job.state()}
    try:
        journal = json.loads((folder / _JOURNAL).read_text(encoding="utf-8"))
    except FileNotFoundError:
        _empty(folder)
        found = look()
        _write_json(folder / _JOURNAL, {**about, "found": found.to_json()})
        return found
    except (OSError, ValueError) as error:
        raise FileError(f"{folder / _JOURNAL}: cannot be read: {error}. Start again with --restart") from error
    if differs := [name for name, value in about.items() if journal.get(name) != value]:
        was = {
            "chunk": f"--chunk {journal.get('chunk')}",
            "path": f"another file, {journal.get('path')}",
            "size": f"{path} before it was changed",
            "modified": f"{path} before it was changed",
            "format": "another version of headwise",
        }
        first = differs[0]
        raise ArgumentError(
            f"{folder} has parts that were computed with {was.get(first) or job.told(first, journal.get(first))}. "
            "Resume with that, or add --restart to delete the parts and start again"
        )
    return Found.from_json(path, journal["found"])


def join(work: Work) -> tuple[int, tuple[str, ...]]:
    """Join all parts into the output file, and delete them.

    Returns:
        The number of rows, and the sentences of `sum_up`.

    Raises:
        ArgumentError: no row has a prediction, or Parquet cannot hold a column.
        FileError: a part is damaged, or the file cannot be written; the parts are kept.
    """
    numbers = range(len(work.found.chunks))
    if gone := work.missing():
        raise damaged(work.part(gone[0]))
    try:
        columns, rows, sentences = sum_up(str(work.found.path), map(work.noted, numbers))
    except ArgumentError:
        delete(work.out)
        raise
    join_parts(work.out, [work.part(number) for number in numbers], columns)
    delete(work.out)
    return rows, sentences


def delete(out: Path) -> None:
    """Delete the parts of a file."""
    shutil.rmtree(name_folder(out), ignore_errors=True)
    _clear(out)


def _clear(out: Path) -> None:
    """Delete the temporary files that a process left when it was killed while joining the parts."""
    for stray in out.parent.glob(f".{glob.escape(out.name)}.*.part"):
        stray.unlink(missing_ok=True)


@contextlib.contextmanager
def alone(out: Path, *, restart: bool = False) -> Iterator[None]:
    """A context in which only this process uses the folder of the parts. At its end, a folder without parts is deleted.

    Args:
        restart: whether to delete the content of the folder first.

    Raises:
        ArgumentError: another process uses the folder.
        FileError: the folder cannot be made.
    """
    folder = name_folder(out)
    try:
        folder.mkdir(exist_ok=True)
        lock = (folder / _LOCK).open("a")
    except FileExistsError as error:
        raise FileError(
            f"{folder}: expected a folder, for the parts of {out.name}. Received: a file. Move or delete it, or choose "
            "another name for the output"
        ) from error
    except OSError as error:
        raise FileError(f"{folder}: cannot be written: {(error.strerror or str(error)).lower()}") from error
    with lock:
        _lock(lock, out)
        if restart:
            _empty(folder)
        try:
            yield
        finally:
            if not any(path.stem.isdecimal() for path in folder.glob(f"*{glob.escape(out.suffix.lower())}")):
                delete(out)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name != _LOCK:
            path.unlink()


def _lock(lock: Any, out: Path) -> None:
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ArgumentError(
            f"{out}: another process is writing this file. Wait for it, or choose another file"
        ) from error
    except OSError:  # a file system without locks
        return


def _read_state(path: Path) -> dict[str, Any]:
    """Return the path, the size and the modification time of a file, by which changes are noticed."""
    try:
        state = path.stat()
    except OSError as error:
        raise FileError(f"{path}: no such file. Expected a file to read") from error
    return {"path": str(path), "size": state.st_size, "modified": state.st_mtime_ns}


def digest(files: Iterable[Path]) -> str:
    """Return a digest of the content of files, by which changes are noticed. OSError passes through."""
    found = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                found.update(block)
    return found.hexdigest()


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with writing(path) as part:
        part.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
        settle(part)
