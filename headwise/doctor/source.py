"""The source of a class, read once: for each question `inspect` parses the whole file."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import Any, cast


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


def source_of(kind: type) -> Source | None:
    """The source of a class; None where there is none."""
    return _read(cast(Any, kind))


@functools.lru_cache(maxsize=1024)
def _read(kind: Any) -> Source | None:
    try:
        file, (lines, first) = inspect.getsourcefile(kind), inspect.getsourcelines(kind)
    except (OSError, TypeError):
        return None
    return Source(file, first, "".join(lines))
