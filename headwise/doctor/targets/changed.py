"""The attention classes that a commit changes: what `headwise doctor --changed` examines."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from headwise.doctor.finding import Where
from headwise.doctor.result import Diagnosis
from headwise.doctor.targets.candidates import Candidate, candidates
from headwise.doctor.targets.repository import Changes
from headwise.errors import DoctorError


@dataclasses.dataclass(frozen=True)
class Changed:
    """Candidates that were changed, and files that could not be read, with the reason."""

    classes: tuple[Candidate, ...]
    unread: dict[Path, str]


def changed(folder: Path, base: str, files: Sequence[Path] = ()) -> Changed:
    """The classes of which a line, or a helper in the same file, differs from `base`. Runs no code, needs no torch.

    Raises ArgumentError outside of a git repository, for an unknown `base`, and for a file that is elsewhere.
    """
    changes = Changes(folder, base)
    found, unread = candidates(changes.files(files))
    lines = {file: changes.lines(file) for file in {file for each in found for file, _ in each.lines}}

    def touched(each: Candidate) -> bool:
        return any((new := lines[file]) is None or number in new for file, number in each.lines)

    return Changed(tuple(filter(touched, found)), unread)


def diagnosed(found: Changed, examine: Callable[[str], Diagnosis]) -> Iterator[Diagnosis]:
    """A diagnosis of each, by a function of a target as it is typed. What it refuses is not examined."""
    for path, why in found.unread.items():
        yield Diagnosis(path.name, (), where=Where(str(path), 1), not_examined=f"it cannot be read: {why}")
    for each in found.classes:
        try:
            diagnosis = examine(f"{Where(str(each.file), each.line).path}:{each.name}")
        except DoctorError as error:
            diagnosis = Diagnosis(each.name, (), not_examined=str(error))
        # Of code that did not return nothing is known, not even its place.
        where = diagnosis.where or Where.at(str(each.file), each.line)
        yield dataclasses.replace(diagnosis, subject=each.name, where=where)
