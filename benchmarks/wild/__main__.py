"""Real bugs of attention, rebuilt small: does the doctor name them, and does it leave their fixed twins alone?

    python benchmarks/wild                          # all, some minutes
    python benchmarks/wild --only rope mask         # cases whose name has one of these words
    python benchmarks/wild --write                  # and the table of docs/doctor.md

A case is a file of `open/` or `kept/` with `broken()` and `fixed()`, and `example()` where a call cannot be guessed.
Its docstring says what went wrong and where that was reported. `kept/` was written by somebody who had not read the
doctor, and was scored only after the work on it (`kept.sha256`). `cases.json` says which findings name each case.

*named*: a bug of one of these names. *otherwise*: another bug. *risk*: it is said, but not as a bug. *missed*: nothing.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import hashlib
import json
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from imported import imported
from rich.console import Console
from rich.table import Table

import headwise
from headwise.doctor import Diagnosis

HERE = Path(__file__).parent
HALVES = ("open", "kept")
DOCUMENT = HERE.parents[1] / "docs" / "doctor.md"
BEGIN, END = "<!-- wild: begin -->", "<!-- wild: end -->"


@dataclasses.dataclass(frozen=True)
class Case:
    """One bug, and which findings name it."""

    half: str
    name: str
    mechanism: str
    source: str
    url: str
    year: int
    family: str
    named_by: tuple[str, ...]

    @property
    def module(self) -> ModuleType:
        """Its file, imported."""
        return imported(self.path, f"wild_{self.half}_{self.name}")

    @property
    def path(self) -> Path:
        return HERE / self.half / f"{self.name}.py"


@dataclasses.dataclass(frozen=True)
class Score:
    """What the doctor said of a case."""

    case: Case
    outcome: str
    said: tuple[str, ...]  # the bugs, or else the risks
    false_bugs: tuple[str, ...]  # of the fixed twin
    seconds: float


def cases(only: list[str]) -> list[Case]:
    """All cases, or those whose name has one of these words."""
    found = []
    for half in HALVES:
        path = HERE / half / "cases.json"
        for name, facts in json.loads(path.read_text(encoding="utf-8")).items() if path.exists() else ():
            if not only or any(word in name for word in only):
                found.append(Case(half, name, **{**facts, "named_by": tuple(facts["named_by"])}))
    return found


def checksum(half: str) -> str:
    """Of the files of one half, in the order of their names."""
    digest = hashlib.sha256()
    for path in sorted((HERE / half).glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def diagnosis(module: ModuleType, which: str) -> Diagnosis:
    """Of `broken` or `fixed`."""
    example: Any = module.example() if hasattr(module, "example") else None
    torch.manual_seed(0)
    return headwise.diagnose(getattr(module, which)(), example=example)


def score(case: Case) -> Score:
    """Diagnose a case and its twin."""
    begun = time.perf_counter()
    module = case.module
    broken, fixed = diagnosis(module, "broken"), diagnosis(module, "fixed")
    seconds = time.perf_counter() - begun
    bugs = tuple(dict.fromkeys(x.name for x in broken.bugs))
    risks = tuple(dict.fromkeys(x.name for x in broken.findings if x.severity == "risk"))
    if set(bugs) & set(case.named_by):
        outcome = "named"
    elif bugs:
        outcome = "otherwise"
    else:
        outcome = "risk" if set(risks) & set(case.named_by) else "missed"
    return Score(case, outcome, bugs or risks, tuple(dict.fromkeys(x.name for x in fixed.bugs)), seconds)


def summary(scores: list[Score], half: str) -> str:
    """One line on a half."""
    mine = [x for x in scores if x.case.half == half]
    counts = collections.Counter(x.outcome for x in mine)
    rest = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()) if outcome != "named")
    share = counts["named"] / max(1, len(mine))
    false = sum(bool(x.false_bugs) for x in mine)
    named = f"{half}: {counts['named']} of {len(mine)} named ({share:.0%})"
    return "; ".join(part for part in (named, rest, f"{false} fixed twins with a bug") if part)


def document(scores: list[Score]) -> str:
    """The table of docs/doctor.md."""
    lines = ["| half | cases | named | as a risk | another bug | missed | fixed twins with a bug |"]
    lines.append("|---|---|---|---|---|---|---|")
    for half in HALVES:
        mine = [x for x in scores if x.case.half == half]
        counts = collections.Counter(x.outcome for x in mine)
        numbers = [counts[outcome] for outcome in ("named", "risk", "otherwise", "missed")]
        cells = [half, len(mine), *numbers, sum(bool(x.false_bugs) for x in mine)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", "Not named as a bug:", ""]
    for x in scores:
        if x.outcome != "named":
            said = f"; it says {', '.join(f'`{name}`' for name in x.said)}" if x.said else ""
            lines.append(f"- {x.case.mechanism.rstrip('.')} ([{x.case.source}]({x.case.url})){said}.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD")
    parser.add_argument("--half", choices=HALVES)
    parser.add_argument("--json", type=Path, help="also write what was said of each case")
    parser.add_argument("--write", action="store_true", help="also write the table into docs/doctor.md")
    parser.add_argument("--checksum", action="store_true", help="print the checksum of each half, and nothing else")
    asked = parser.parse_args()
    if asked.checksum:
        for half in HALVES:
            print(half, checksum(half))
        return
    scores = []
    table = Table("half", "case", "outcome", "said", "of the fixed twin", "seconds")
    for case in cases(asked.only):
        if asked.half in (None, case.half):
            found = score(case)
            scores.append(found)
            row = [case.half, case.name, found.outcome, ", ".join(found.said), ", ".join(found.false_bugs)]
            table.add_row(*row, f"{found.seconds:.1f}")
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    for half in HALVES:
        console.print(summary(scores, half))
    if asked.json is not None:
        told = [{**dataclasses.asdict(x), "case": x.case.name, "half": x.case.half} for x in scores]
        asked.json.write_text(json.dumps(told, indent=1), encoding="utf-8")
    if asked.write:
        before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        DOCUMENT.write_text(f"{before}{BEGIN}\n{document(scores)}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
