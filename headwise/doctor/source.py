"""The source of a class, read once: `inspect` parses the whole file for each question."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import Any

from headwise.doctor.finding import Where


@dataclasses.dataclass(frozen=True)
class Source:
    """The text of a class, and where it stands."""

    file: str | None
    line: int
    text: str

    @property
    def end(self) -> int:
        """The line after its last one."""
        return self.line + self.text.count("\n")


def source_of(kind: object) -> Source | None:
    """The source of a class or function; None where there is none."""
    return _read(kind)


def definition(made: object) -> Where | None:
    """The line where a class or function is defined; None where there is no source."""
    found = source_of(made)
    if found is None or found.file is None:
        return None
    return Where(found.file, found.line, found.text.partition("\n")[0].strip())


@functools.lru_cache(maxsize=1024)
def _read(kind: Any) -> Source | None:
    try:
        file, (lines, first) = inspect.getsourcefile(kind), inspect.getsourcelines(kind)
    except (OSError, TypeError):
        return None
    return Source(file, first, "".join(lines))
