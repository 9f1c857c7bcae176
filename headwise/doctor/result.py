"""`Diagnosis`: what the doctor returns, which prints itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwise.doctor.finding import Findings
from headwise.language import Sentence
from headwise.tables import Printed

if TYPE_CHECKING:
    from rich.console import RenderableType


class Diagnosis(Findings, Printed):
    """All findings about one module."""

    def __repr__(self) -> str:
        from headwise.doctor.telling.report import conclusion

        names = ", ".join(dict.fromkeys(finding.name for finding in self.findings if finding.severity != "note"))
        found = f" Found: {names}." if names else ""
        return Sentence("Diagnosis of {subject}. {conclusion}{found} print(...) says all.").format(
            subject=self.subject, conclusion=conclusion(self), found=found
        )

    def __str__(self) -> str:
        from headwise.doctor.telling.report import as_text

        return as_text(self)

    def __rich__(self) -> RenderableType:
        from headwise.doctor.telling.report import report

        return report(self)
