"""Positions that are said to enter queries and keys only, as in DETR, and enter the values too.

A mask leaves one key, whose weight is then 1 whatever its score: its position can change the output by its value alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.calling import names
from headwise.doctor.calling.claims import text_of
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.masking import hide
from headwise.doctor.probing.probe import ROUNDING, Probe, gap
from headwise.errors import DoctorError

FINDINGS = ("positions-in-values",)

_SAID = re.compile(
    r"(quer(y|ies)|\bq) (and|/|&) (the )?(keys?|k) only|only (to|in|into) (the )?(quer(y|ies)|q) and (the )?(keys?|k)\b"
    r"|values? (carr(y|ies)|holds?|keeps?) (only )?content|not (added )?(to|in|into) (the )?values?\b",
    re.IGNORECASE,
)
_POSITIONS = re.compile(r"^(memory_|key_|k_)?pos(ition)?(_?emb(ed|edding)?s?|_?enc(oding)?s?)?$")


def check(patient: Patient) -> Iterator[Finding]:
    said = _SAID.search(re.sub(r"\s+", " ", text_of(patient.module)))
    probe = Probe(patient)
    if said is None or probe.interface.takes != "memory":
        raise NotApplicable("nothing says that positions enter queries and keys only")
    inputs = probe.inputs()
    at = probe.interface.way.sizes(inputs)
    given = {name: make(at) for name, make in probe.interface.way.extras if _POSITIONS.match(names.simple(name))}
    tables = {name: x for name, x in given.items() if isinstance(x, Tensor) and x.is_floating_point()}
    if not tables:
        raise NotApplicable("it is given no positions of the memory")
    one = hide(inputs, *range(1, inputs.key_length))[:, 0]
    for name, x in tables.items():
        other = torch.randn(x.shape, generator=torch.Generator().manual_seed(5)).to(x)
        try:
            found = [probe.output(inputs, padding=one, given={name: table}) for table in (x, other)]
            seen = gap(*(probe.output(inputs, given={name: table}) for table in (x, other)))
        except DoctorError as problem:
            raise NotChecked(str(problem)) from None
        change = gap(*found)
        if change > ROUNDING and seen > ROUNDING:
            yield Finding(
                "positions-in-values",
                "bug",
                f"{said.group(0)!r} is said of positions; where a query attends to one key alone, another `{name}` "
                f"still changes the output, by up to {change:.2g} of its size: it is added to the values, too",
                "add positions to the keys alone: attention(query=x + query_pos, key=memory + pos, value=memory)",
                numbers={"change": change},
            )
