"""A map whose tokens attend along one axis alone, where the module says that it attends along both.

Axial attention attends along the rows, and then along the columns. Code that forgets to swap the axes in between
attends twice along the same one, and every shape fits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch

from headwise.doctor.calling.claims import text_of_all
from headwise.doctor.calling.forward_arguments import sides
from headwise.doctor.calling.way import MAP, MAPS
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.probe import REACHED, Probe

FINDINGS = ("axis-unread",)

_BOTH = (("row", "col"), ("height", "width"), ("vertical", "horizontal"), ("axial", "axial"))


def check(patient: Patient) -> Iterator[Finding]:
    if patient.interface.way.layout not in MAPS or len(patient.see().sites) < 2:
        raise NotApplicable("it does not attend to a map twice")
    text = text_of_all(patient.module).lower()
    said = next((x for x in _BOTH if all(re.search(rf"(\b|_){word}", text) for word in x)), None)
    probe = Probe(patient)
    inputs = probe.inputs(1, MAP)
    height, width = sides(inputs.query.shape[1])
    if said is None or min(height, width) < 2:
        raise NotApplicable("nothing says that it attends along both axes")
    reached = probe.influence(inputs) > REACHED
    row, column = torch.arange(height * width) // width, torch.arange(height * width) % width
    across = {
        name: bool((reached & (at[:, None] != at[None])).any()) for name, at in (("rows", row), ("columns", column))
    }
    if sum(across.values()) == 1:
        missing = next(name for name, met in across.items() if not met)
        yield Finding(
            "axis-unread",
            "bug",
            f"on a map of {height} rows and {width} columns no token changes the output of a token in other {missing}, "
            f"and its code speaks of {' and '.join(dict.fromkeys(said))}: every attention is along the same axis",
            "swap the axes before the second attention and after it: x.transpose(1, 2) of [B, H, W, C]",
            patient.where,
        )
