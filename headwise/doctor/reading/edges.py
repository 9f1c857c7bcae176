"""What is said of a matrix of edges: whether its rows are where edges start."""

from __future__ import annotations

import re

from headwise.doctor.calling.claims import text_of
from headwise.doctor.patient import Patient

_PLACE = r"\b{name}\[\s*(?:\w+\s*,\s*)?(?P<row>\w+)\s*,\s*(?P<column>\w+)\s*\][^.;]{{0,60}}?"
_NODE = r"(?:node |the |vertex )*"
_TO = rf"\bfrom {_NODE}(?P<start>\w+) to {_NODE}(?P<end>\w+)\b"
_RECEIVES = (
    rf"(?:\bif |\bnode )\W*{_NODE}(?P<end>\w+) (?:receives|attends|listens)\b"
    rf"[^.;]{{0,30}}?(?:from|to) {_NODE}(?P<start>\w+)\b"
)


def starts_at_rows(patient: Patient, name: str) -> tuple[str, bool] | None:
    """What is said of name[row, column], and whether the row is where an edge starts; None if nothing is said."""
    text = re.sub(r"\s+", " ", text_of(patient.module)).replace("``", "")
    for way in (_TO, _RECEIVES):
        said = re.search(_PLACE.format(name=re.escape(name)) + way, text)
        if said and {said["start"], said["end"]} == {said["row"], said["column"]} and said["start"] != said["end"]:
            return said.group(0), said["start"] == said["row"]
    return None
