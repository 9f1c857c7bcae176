"""What `headwise doctor --json` said of a class: read by `benchmarks/real` and `benchmarks/blind`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Told:
    """The names of the findings, and what was not looked at."""

    examined: bool
    bugs: tuple[str, ...]
    risks: tuple[str, ...]
    unchecked: int


def read_told(found: Path) -> Told:
    """What a file of the command says; nothing, if it was not written."""
    told = json.loads(found.read_text(encoding="utf-8"))["diagnoses"] if found.exists() else []
    bugs, risks = (
        tuple(sorted({x["name"] for each in told for x in each["findings"] if x["severity"] == severity}))
        for severity in ("bug", "risk")
    )
    examined = bool(told) and not any(each["not_examined"] for each in told)
    return Told(examined, bugs, risks, sum(len(each["unchecked"]) for each in told))
