"""Checks whether a run folder exists, and locks it. Imports nothing heavy, so that the command can check first."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from headwise.errors import ArgumentError, CheckpointError, FileError, brief
from headwise.files import locking
from headwise.language import Sentence

CONFIG, _LOCK = "config.yaml", ".lock"


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """A context in which only this process trains in a folder, which is made now. An empty one is deleted at the end.

    Raises:
        ArgumentError: another process trains in it.
        FileError: it cannot be made or written.
    """
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    with contextlib.ExitStack() as at_end:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            at_end.callback(_delete_empty, made)
            busy = "{folder}: another training is running in this folder. Wait for it, or choose another folder"
            at_end.enter_context(locking(folder / _LOCK, Sentence(busy).format(folder=folder)))
        except OSError as cause:
            raise FileError(
                Sentence("cannot make the run folder {folder}: {cause}").format(
                    folder=folder, cause=cause.strerror or cause
                )
            ) from cause
        at_end.callback(_delete_lock, folder / _LOCK)
        yield


def _delete_lock(lock: Path) -> None:
    with contextlib.suppress(OSError):  # Windows deletes no open file
        lock.unlink()


def _delete_empty(folders: Sequence[Path]) -> None:
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def check_new(folder: Path) -> None:
    """Raise ArgumentError if the folder already holds a run, because nothing is overwritten."""
    if (folder / CONFIG).exists():
        raise ArgumentError(
            Sentence(
                "{folder} holds a run already: resume it (resume=True, --resume), or choose another folder"
            ).format(folder=folder)
        )


def is_run(text: str) -> bool:
    """Return whether a text names a run folder; False if it is too long to be a path."""
    try:
        return (Path(text) / CONFIG).is_file()
    except (OSError, ValueError):
        return False


def check_first(first: str, inputs: Iterable[str]) -> None:
    """Raise CheckpointError if one of the inputs is a run folder, which `first` is not."""
    if run := next((each for each in inputs if is_run(each)), None):
        told = Sentence("{run} is a run folder: it goes first, before its inputs. Received first: {first}")
        raise CheckpointError(told.format(run=run, first=brief(first)))


def check_there(folder: Path, *inputs: str) -> None:
    """Raise CheckpointError if there is no such folder; it says so if one of the inputs after it is a run folder."""
    if not folder.is_dir():
        check_first(str(folder), inputs)
        what = "is a file" if folder.exists() else "is not there"
        raise CheckpointError(
            Sentence("{folder} {what}: expected a run folder. `headwise train ... --out {folder}` writes one").format(
                folder=folder, what=what
            )
        )
