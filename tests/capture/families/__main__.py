"""`scripts/families`: what the watch makes of each softmax, over every family of the installed transformers."""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import torch
import transformers

from tests.capture.families import models
from tests.capture.families.compare import BOUND, VERDICTS, Finding
from tests.capture.families.run import SECONDS, Report, run

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "watch.md"
BEGIN, END = "<!-- families: begin -->", "<!-- families: end -->"


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/families", description=__doc__)
    parser.add_argument("--only", default="", metavar="NAME,…", help="these families, not all")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="how many at a time (default: 2)")
    parser.add_argument("--seconds", type=int, default=SECONDS, metavar="N", help="how long one may take")
    parser.add_argument("--dtype", default="float32", choices=[str(dtype)[6:] for dtype in BOUND], help="of the models")
    parser.add_argument("--write", action="store_true", help="the table into docs/watch.md")
    asked = parser.parse_args()
    known = models.families()
    families = [name for name in asked.only.split(",") if name] or known
    unknown = sorted(set(families) - set(known))
    if unknown:
        parser.error(f"--only: not among the {len(known)} model types of transformers: {', '.join(unknown)}")
    if asked.write and asked.only:
        parser.error("--write needs all families. Received: --only. Leave one of them out")
    reports = []
    for report in run(families, asked.jobs, dtype=getattr(torch, asked.dtype), seconds=asked.seconds):
        reports.append(report)
        print(line(report), flush=True)
        for shown in notes(report):
            print(f"    {shown}", flush=True)
    reports.sort(key=lambda report: report.family)
    print("\n" + "\n".join(summary(reports)))
    if asked.write:
        write(reports)
    total = counted(reports)
    return int(bool(total["wrong"] or total["silent"] or any(changed(report) for report in reports)))


def counted(reports: Iterable[Report]) -> Counter[str]:
    """How many softmaxes there are of each verdict."""
    return sum((result.count() for report in reports for result in report.results.values()), Counter())


def changed(report: Report) -> bool:
    return any(result.changed for result in report.results.values())


def line(report: Report) -> str:
    """One family in one line."""
    if report.error:
        return f"{report.family:32} could not be made: {report.error[:600]}"
    total = counted([report])
    counts = ", ".join(f"{total[verdict]} {verdict}" for verdict in VERDICTS if total[verdict])
    extra = " OUTPUT CHANGED" if changed(report) else ""
    gates = sum(result.gates for result in report.results.values())
    counts = counts or ("no attention" if report.results else "")
    return f"{report.family:32} {counts}{f' ({gates} gates)' if gates else ''}{extra}  {report.seconds:.1f} s"


def notes(report: Report) -> list[str]:
    """What is not exact, once for all layers and inputs where it is the same."""
    found: dict[tuple[str, str], list[str]] = {}
    for variant, result in report.results.items():
        for finding in result.findings:
            if finding.verdict not in ("exact", "bounded"):
                found.setdefault(_kind(finding), []).append(f"{finding.module} in {variant}: {finding.note}")
        if result.fused:
            found.setdefault(("truth", str(result.fused)), []).append(f"{result.fused} was not taken apart")
    shown = [f"{verdict} ({len(each)}): {each[0]}" for (verdict, _), each in found.items()]
    return [*shown, *(f"{variant} did not run: {reason}" for variant, reason in report.skipped.items())]


def _kind(finding: Finding) -> tuple[str, str]:
    return finding.verdict, re.sub(r"\d+(\.\d+)?(e-?\d+)?", "N", f"{finding.module} {finding.note}")


def summary(reports: list[Report]) -> list[str]:
    total, unmade = counted(reports), [report for report in reports if report.error]
    ran = [report for report in reports if report.results]
    lines = [
        f"transformers {transformers.__version__}, torch {torch.__version__}: {len(reports)} families, {len(ran)} ran "
        f"({sum(len(report.results) for report in ran)} inputs), {len(unmade)} could not be made",
        ", ".join(f"{total[verdict]} {verdict}" for verdict in VERDICTS),
        f"outputs that the watch changed: {sum(map(changed, reports))} families",
    ]
    return [*lines, *(f"could not be made: {report.family}: {report.error[:300]}" for report in unmade)]


def table(reports: list[Report]) -> str:
    """What stands in docs/watch.md."""
    total = counted(reports)
    ran = [report for report in reports if report.results]
    attentive = [report for report in ran if counted([report])]
    plain = [report for report in attentive if not set(counted([report])) - {"exact", "bounded"}]
    rest = [report for report in attentive if report not in plain]
    unmade = [report for report in reports if report.error]
    runs = sum(len(report.results) for report in ran)
    lines = [
        BEGIN,
        f"transformers {transformers.__version__}, torch {torch.__version__.partition('+')[0]}:",
        f"{len(reports)} families, {len(ran)} ran, with {runs} inputs:",
        "sdpa and eager; no padding, on the left and on the right, where the model takes it. "
        f"{len(attentive)} have softmax attention.",
        "",
        "| " + " | ".join(VERDICTS) + " |",
        "|" + "---|" * len(VERDICTS),
        "| " + " | ".join(f"{total[verdict]:,}" for verdict in VERDICTS) + " |",
        "",
        f"All softmaxes are exact in {len(plain)} families. The others:",
        "",
        "| family | " + " | ".join(VERDICTS) + " | why |",
        "|" + "---|" * (len(VERDICTS) + 2),
    ]
    for report in rest:
        mine = counted([report])
        reasons = "; ".join(dict.fromkeys(_reason(finding) for finding in open_findings(report)))
        lines.append(
            f"| {report.family} | " + " | ".join(str(mine[verdict] or "") for verdict in VERDICTS) + f" | {reasons} |"
        )
    if unmade:
        lines += ["", f"{len(unmade)} families could not be made here:", "", "| family | error |", "|---|---|"]
        lines += [f"| {report.family} | {_cell(report.error)} |" for report in unmade]
    return "\n".join([*lines, END])


def open_findings(report: Report) -> list[Finding]:
    return [
        finding
        for result in report.results.values()
        for finding in result.findings
        if finding.verdict not in ("exact", "bounded")
    ]


def _reason(finding: Finding) -> str:
    return _cell(f"{finding.verdict}: {re.sub(r'^[^:]*: ', '', finding.note)}")


def _cell(text: str) -> str:
    text = " ".join(text.split()).replace("|", "/")
    return text if len(text) <= 240 else text[:239] + "…"


def write(reports: list[Report]) -> None:
    """Put the table between its markers. ValueError if they are not there."""
    text = DOCUMENT.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"{DOCUMENT}: expected {BEGIN} and {END} once each. Put them where the table belongs")
    before, rest = text.split(BEGIN)
    DOCUMENT.write_text(before + table(reports) + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
