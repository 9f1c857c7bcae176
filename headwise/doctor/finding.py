"""What the doctor reports: a finding, all findings about one module, and why a check was not made."""

from __future__ import annotations

import contextlib
import dataclasses
import linecache
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headwise.language import Sentence

if TYPE_CHECKING:
    from typing_extensions import Self

# bug: the result is wrong. risk: correct here, wrong under conditions that the evidence names. note: worth knowing.
Severity = Literal["bug", "risk", "note"]
ORDER: dict[Severity, int] = {"bug": 0, "risk": 1, "note": 2}


ALL_EVIDENCE = "examined by operations, behaviour and gradients"


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

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers in the evidence, by the names of their places in it."""
        return self.evidence.numbers if isinstance(self.evidence, Sentence) else {}

    def to_dict(self) -> dict[str, Any]:
        """As JSON-compatible values; NaN and infinity, which JSON does not have, become None."""
        numbers = {name: x if math.isfinite(x) else None for name, x in self.numbers.items()}
        return {**dataclasses.asdict(self), "sources": list(self.sources), "numbers": numbers}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Finding:
        """What `to_dict` wrote."""
        known = {name: x for name, x in found.items() if name != "numbers"}
        text = found["evidence"]
        if not isinstance(text, Sentence):  # of a file: it gets its numbers back
            numbers = {name: math.nan if x is None else x for name, x in found["numbers"].items()}
            known["evidence"] = Sentence(text, "{text}", {"text": text, **numbers})
        return cls(**{**known, "sources": tuple(found["sources"]), "where": _read_where(found)})


@dataclasses.dataclass(frozen=True, repr=False)
class Findings:
    """All findings about one module, and what was understood of it."""

    subject: str  # the class
    findings: tuple[Finding, ...]  # bugs first
    # A line each: how it is called, its mask, its heads, its scale, what reproduces it.
    understood: tuple[str, ...] = ()
    unchecked: Mapping[str, str] = dataclasses.field(default_factory=dict)  # check -> why it was not made
    seconds: float = 0.0
    where: Where | None = None  # where the class is defined
    not_examined: str = ""  # why the doctor could not call it: then its code was read, and its parts were examined
    evidence: str = ""  # what could be examined, in a sentence; "" if it was not examined

    @property
    def limited(self) -> bool:
        """Whether a part of the evidence was missing: its operations."""
        return self.evidence not in ("", ALL_EVIDENCE)

    @property
    def bugs(self) -> tuple[Finding, ...]:
        return tuple(x for x in self.findings if x.severity == "bug")

    @property
    def notes(self) -> tuple[Finding, ...]:
        """Remarks that hold for most modules. The report counts them, and shows them if it is asked to."""
        return tuple(x for x in self.findings if x.severity == "note")

    @property
    def healthy(self) -> bool:
        """Whether it was examined and no bug was found; risks and notes do not count."""
        return not self.bugs and not self.not_examined

    def to_dict(self) -> dict[str, Any]:
        """As JSON-compatible values."""
        return {
            "subject": self.subject,
            "healthy": self.healthy,
            **dataclasses.asdict(self),
            "findings": [finding.to_dict() for finding in self.findings],
            "understood": list(self.understood),
            "seconds": round(self.seconds, 3),
        }

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Self:
        """What `to_dict` wrote."""
        known = {name: x for name, x in written.items() if name != "healthy"}
        known["findings"] = tuple(Finding.from_dict(x) for x in written["findings"])
        return cls(**{**known, "understood": tuple(written["understood"]), "where": _read_where(written)})


def _read_where(written: Mapping[str, Any]) -> Where | None:
    return None if written["where"] is None else Where(**written["where"])


class NotChecked(Exception):  # noqa: N818 (an answer, not an error)
    """A check cannot be made on this module; the message says why."""


class NotApplicable(NotChecked):
    """There is nothing to check in this module: it has no mask, no cache, no positions."""
