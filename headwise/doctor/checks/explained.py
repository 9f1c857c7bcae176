"""Layers whose operations torch does not see: the mistake with which their own weights give their output."""

from __future__ import annotations

from collections.abc import Iterator

from headwise.doctor.finding import Finding
from headwise.doctor.foreign import foreign_backend
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.recomputing import recompute

FINDINGS = ("not-attention",)

_FIX = "do this as the definition of attention does; the evidence says what the module does instead"


def check(patient: Patient) -> Iterator[Finding]:
    if patient.anatomy is None and not patient.has_attention:
        yield Finding(
            "not-attention",
            "note",
            patient.anatomy_problem,
            "pass the doctor a module that computes attention",
            patient.where,
        )
        return
    if not foreign_backend(patient.module):
        raise NotApplicable("its operations are seen")
    match, masks = recompute(patient)
    for parameter, each in {"": match, **masks}.items():
        if each.mistake is not None:
            yield Finding(
                each.mistake.name,
                "bug",
                f"{f'`{parameter}`: ' if parameter else ''}{each.told}",
                _FIX,
                patient.where,
                numbers={"error": each.error, "healthy_error": each.healthy_error},
            )
