"""A finding of the doctor, and why a check was not made."""

from __future__ import annotations

import contextlib
import dataclasses
import linecache
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

# bug: the result is wrong. risk: correct here, wrong under conditions that the evidence names. note: worth knowing.
Severity = Literal["bug", "risk", "note"]
ORDER: dict[Severity, int] = {"bug": 0, "risk": 1, "note": 2}


@dataclasses.dataclass(frozen=True)
class Where:
    """A line of the user's code."""

    file: str
    line: int
    code: str = ""  # the line itself, stripped

    @classmethod
    def at(cls, file: str, line: int) -> Where:
        """A line with its code."""
        return cls(file, line, linecache.getline(file, line).strip())

    @classmethod
    def read(cls, written: Mapping[str, Any] | None) -> Where | None:
        """From a mapping of the fields, as of JSON."""
        return None if written is None else cls(**written)

    def __str__(self) -> str:
        """A short form: relative to the working directory or to site-packages where the file is inside one of them."""
        path = Path(self.file)
        installed = [i for i, part in enumerate(path.parts) if part in ("site-packages", "dist-packages")]
        return f"{Path(*path.parts[installed[-1] + 1 :]) if installed else self.path}:{self.line}"

    @property
    def path(self) -> Path:
        """The file: relative to the working directory if it is inside."""
        with contextlib.suppress(ValueError, OSError):
            return Path(self.file).resolve().relative_to(Path.cwd().resolve())
        return Path(self.file)


@dataclasses.dataclass(frozen=True)
class Finding:
    """One mistake or remark that the doctor reports."""

    name: str  # the kind of finding, such as "wrong-scale"; docs/doctor.md lists them
    severity: Severity
    evidence: str  # what was seen, with its numbers, in a sentence or two
    fix: str  # what to change
    where: Where | None = None  # the line of code, if tracing found it
    sources: tuple[str, ...] = ()  # threads, such as "vit-pytorch #65"
    numbers: Mapping[str, float] = dataclasses.field(default_factory=dict)  # the numbers in the evidence, as floats

    def to_dict(self) -> dict[str, Any]:
        """As JSON-compatible values; NaN and infinity, which JSON does not have, become None."""
        numbers = {name: float(x) if math.isfinite(x) else None for name, x in self.numbers.items()}
        return {**dataclasses.asdict(self), "sources": list(self.sources), "numbers": numbers}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Finding:
        """What `to_dict` wrote."""
        numbers = {name: math.nan if x is None else x for name, x in found["numbers"].items()}
        known = {**found, "sources": tuple(found["sources"]), "numbers": numbers}
        return cls(**{**known, "where": Where.read(found["where"])})


class NotChecked(Exception):  # noqa: N818 (an answer, not an error)
    """A check cannot be made on this module; the message says why."""


class NotApplicable(NotChecked):
    """There is nothing to check in this module: it has no mask, no cache, no positions."""
