"""`Diagnosis`: what the doctor returns, which prints itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headwise.doctor.finding import Finding, Where
from headwise.tables import Printed

if TYPE_CHECKING:
    from rich.console import RenderableType

ALL_EVIDENCE = "examined by operations, behaviour and gradients"


@dataclasses.dataclass(frozen=True, repr=False)
class Diagnosis(Printed):
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
    def from_dict(cls, written: Mapping[str, Any]) -> Diagnosis:
        """What `to_dict` wrote."""
        known = {name: x for name, x in written.items() if name != "healthy"}
        known["findings"] = tuple(Finding.from_dict(x) for x in written["findings"])
        return cls(**{**known, "understood": tuple(written["understood"]), "where": Where.read(written["where"])})

    def __repr__(self) -> str:
        from headwise.doctor.telling.report import conclusion

        names = ", ".join(dict.fromkeys(finding.name for finding in self.findings if finding.severity != "note"))
        found = f" Found: {names}." if names else ""
        return f"Diagnosis of {self.subject}. {conclusion(self)}{found} print(...) says all."

    def __str__(self) -> str:
        from headwise.doctor.telling.report import as_text

        return as_text(self)

    def __rich__(self) -> RenderableType:
        from headwise.doctor.telling.report import report

        return report(self)
