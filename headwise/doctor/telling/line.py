"""A diagnosis in one line, for a list of many: what it is about, the verdict, the seconds."""

from __future__ import annotations

from collections.abc import Collection

from headwise.doctor.finding import Findings, Severity
from headwise.doctor.telling.printable import printable
from headwise.language import said


def line(diagnosis: Findings, name: str, ignored: Collection[str] = ()) -> str:
    """ "my_model.py:A: 2 bugs: wrong-scale, causal-leak (0.8 s)"; findings that are ignored do not count."""
    return printable(f"{name}: {' '.join(_verdict(diagnosis, ignored).split())} ({diagnosis.seconds:.1f} s)")


def _verdict(diagnosis: Findings, ignored: Collection[str]) -> str:
    names: dict[Severity, list[str]] = {"bug": [], "risk": []}
    for finding in diagnosis.findings:
        if finding.name not in ignored and finding.severity in names:
            names[finding.severity].append(finding.name)
    told = [] if names["bug"] or diagnosis.not_examined else [said("healthy")]
    for severity, found in names.items():
        if found:
            told.append(
                said(f"{len(found)} {severity}{'s' * (len(found) > 1)}") + f": {', '.join(dict.fromkeys(found))}"
            )
    if left := dict.fromkeys(x.name for x in diagnosis.findings if x.name in ignored):
        told.append(said(f"ignored: {', '.join(left)}"))
    if diagnosis.not_examined:
        told.append(said(f"not examined: {diagnosis.not_examined}"))
    return "; ".join(told)
