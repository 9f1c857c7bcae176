"""The parts of an output file (one for each chunk of the input): kept in a folder until all are complete and joined.

    .out.parquet.parts/
        journal.json       the file, the job and the chunks of the parts
        000000.parquet     the first chunk with the results; renamed when it is complete
        000000.json        its columns, rows without an answer, and the checksum of 000000.parquet; written before it

A part with its noted checksum is complete, so after any interruption another process computes the missing parts. A part
with another one is damaged, and is computed again. Nothing else that is in the folder is touched.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from headwise.errors import ArgumentError, FileError
from headwise.files import compute_checksum, damaged, locking, read_sealed, write_sealed
from headwise.language import Sentence, packed, unpacked
from headwise.tasks.bulk.answered import Answered, Note, sum_up
from headwise.tasks.rows.chunks import Found, Reader
from headwise.tasks.rows.sources import Table
from headwise.tasks.rows.written import join_parts, write_part

_FORMAT = 5
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
        """Return whether the file of a part has the checksum that was recorded when the part was finished."""
        try:
            return self.noted(number).checksum == compute_checksum(self.part(number))
        except (OSError, ValueError, TypeError):
            return False

    def noted(self, number: int) -> Note:
        """Read the summary of a finished part."""
        return Note(**unpacked(read_sealed(self.note(number))))

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

        def settled(checksum: str) -> None:
            write_sealed(self.note(number), packed(asdict(replace(note, checksum=checksum))))

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
    about = {"format": _FORMAT, "chunk": chunk, **_read_state(path), **job.state()}
    try:
        journal = unpacked(read_sealed(folder / _JOURNAL))
    except FileNotFoundError:
        _empty(out)
        found = look()
        write_sealed(folder / _JOURNAL, packed({**about, "found": found.to_json()}))
        return found
    except (OSError, ValueError) as error:
        raise FileError(
            "{folder}: cannot be read: {error}. Start again with --restart", folder=folder / _JOURNAL, error=error
        ) from error
    if differs := [name for name, value in about.items() if journal.get(name) != value]:
        was = {
            "chunk": f"--chunk {journal.get('chunk')}",
            "path": Sentence("another file, {path}").format(path=journal.get("path")),
            "size": Sentence("{path} before it was changed").format(path=path),
            "modified": Sentence("{path} before it was changed").format(path=path),
            "format": "another version of headwise",
        }
        first = differs[0]
        raise ArgumentError(
            "{folder} has parts that were computed with {other}. Resume with that, or add --restart to "
            "delete the parts and start again",
            folder=folder,
            other=was.get(first) or job.told(first, journal.get(first)),
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
    """Delete the parts of a file, and their folder if nothing else is in it."""
    _empty(out)
    with contextlib.suppress(OSError):
        (name_folder(out) / _LOCK).unlink()
        name_folder(out).rmdir()


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
    with contextlib.ExitStack() as locked:
        try:
            if folder.is_symlink():
                raise FileExistsError
            folder.mkdir(exist_ok=True)
            busy = f"{out}: another process is writing this file. Wait for it, or choose another file"
            locked.enter_context(locking(folder / _LOCK, busy))
        except FileExistsError as error:
            raise FileError(
                "{folder}: expected a folder, for the parts of {name}. Received: a {kind}. Move or delete it, "
                "or choose another name for the output",
                folder=folder,
                name=out.name,
                kind=Sentence("link" if folder.is_symlink() else "file"),
            ) from error
        except OSError as error:
            raise FileError(
                "{folder}: cannot be written: {cause}", folder=folder, cause=(error.strerror or str(error)).lower()
            ) from error
        if restart:
            _empty(out)
        try:
            yield
        finally:
            if not any(path.suffix == out.suffix.lower() for path in _own(out)):
                delete(out)


def _empty(out: Path) -> None:
    for path in _own(out):
        path.unlink()


def _own(out: Path) -> list[Path]:
    """Find the journal, the parts, their notes and unfinished files: what this program itself names in the folder."""
    name = rf"journal\.json|\d{{6,}}(\.json|{re.escape(out.suffix.lower())})"
    return [
        path
        for path in name_folder(out).glob("*")
        if re.fullmatch(rf"{name}|\.({name})\.[0-9a-f]{{8}}-\d+-\d+\.part", path.name) and not path.is_dir()
    ]


def _read_state(path: Path) -> dict[str, Any]:
    """Return the path, the size and the modification time of a file, by which changes are noticed."""
    try:
        state = path.stat()
    except OSError as error:
        raise FileError("{path}: no such file. Expected a file to read", path=path) from error
    return {"path": str(path), "size": state.st_size, "modified": state.st_mtime_ns}


def digest(files: Iterable[Path]) -> str:
    """Return a digest of the names and the content of files, by which changes are noticed. OSError passes through."""
    found = hashlib.sha256()
    for path in files:
        found.update(f"{path.name} {path.stat().st_size}\n".encode("utf-8", "surrogateescape"))
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                found.update(block)
    return found.hexdigest()
