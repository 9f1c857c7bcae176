"""What the doctor says: findings, and the diagnosis that holds them."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import RenderableType

# bug: what is computed is wrong. risk: right here, wrong under conditions that the evidence names. note: worth knowing.
Severity = Literal["bug", "risk", "note"]


@dataclasses.dataclass(frozen=True)
class Where:
    """A line of somebody's code."""

    file: str
    line: int
    code: str = ""  # the line itself, stripped

    def __str__(self) -> str:
        """Short: relative to the working directory if it is in it, or to where packages are installed."""
        path = Path(self.file)
        installed = [i for i, part in enumerate(path.parts) if part in ("site-packages", "dist-packages")]
        if installed:
            return f"{Path(*path.parts[installed[-1] + 1 :])}:{self.line}"
        with contextlib.suppress(ValueError, OSError):
            path = path.resolve().relative_to(Path.cwd().resolve())
        return f"{path}:{self.line}"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing the doctor found."""

    name: str  # of the mistake, such as "wrong-scale"; the list is in docs/doctor.md
    severity: Severity
    evidence: str  # what was seen, with its numbers, in a sentence or two
    mend: str  # what to change
    where: Where | None = None  # where tracing knows it
    sources: tuple[str, ...] = ()  # threads ("vit-pytorch #65") and papers
    numbers: Mapping[str, float] = dataclasses.field(default_factory=dict)  # the same numbers, to compute with

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it; a number that is infinite or NaN, which JSON does not know, is None there."""
        return {
            "name": self.name,
            "severity": self.severity,
            "evidence": self.evidence,
            "mend": self.mend,
            "where": _where_to_dict(self.where),
            "sources": list(self.sources),
            "numbers": {name: float(x) if math.isfinite(x) else None for name, x in self.numbers.items()},
        }

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Finding:
        """What `to_dict` wrote."""
        known = {**found, "where": _where_from_dict(found["where"]), "sources": tuple(found["sources"])}
        known["numbers"] = {name: math.nan if x is None else x for name, x in found["numbers"].items()}
        return cls(**known)


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """All that was found in one module."""

    subject: str  # the class
    findings: tuple[Finding, ...]  # bugs first
    understood: tuple[
        str, ...
    ] = ()  # a line each: how it is called, its mask, its heads, its scale, what reproduces it
    unchecked: Mapping[str, str] = dataclasses.field(default_factory=dict)  # check -> why it could not be made
    seconds: float = 0.0
    where: Where | None = None  # where the class is defined

    @property
    def bugs(self) -> tuple[Finding, ...]:
        return tuple(x for x in self.findings if x.severity == "bug")

    @property
    def healthy(self) -> bool:
        """Whether no bug was found; risks and notes do not count."""
        return not self.bugs

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "subject": self.subject,
            "healthy": self.healthy,
            "findings": [finding.to_dict() for finding in self.findings],
            "understood": list(self.understood),
            "unchecked": dict(self.unchecked),
            "seconds": round(self.seconds, 3),
            "where": _where_to_dict(self.where),
        }

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Diagnosis:
        """What `to_dict` wrote."""
        known = {name: x for name, x in written.items() if name != "healthy"}
        known["findings"] = tuple(Finding.from_dict(x) for x in written["findings"])
        known["understood"] = tuple(written["understood"])
        known["where"] = _where_from_dict(written["where"])
        return cls(**known)

    def __str__(self) -> str:
        from headwise.doctor.telling.report import as_text

        return as_text(self)

    def __rich__(self) -> RenderableType:
        from headwise.doctor.telling.report import report

        return report(self)


def _where_to_dict(where: Where | None) -> dict[str, Any] | None:
    return None if where is None else dataclasses.asdict(where)


def _where_from_dict(written: Mapping[str, Any] | None) -> Where | None:
    return None if written is None else Where(**written)
