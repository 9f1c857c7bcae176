"""Positions times frequencies in half precision: bfloat16 is exact up to 256, so later positions share their angles."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.reading.anatomy import look

FINDINGS = ("rope-half-precision",)


def check(patient: Patient) -> Iterator[Finding]:
    if not patient.see().run.functions and "cos" not in patient.source and "polar" not in patient.source:
        raise NotApplicable("it computes no cos or sin in its forward")
    try:
        run = look(patient, dtype=torch.bfloat16).run
    except Exception as error:
        raise NotChecked(f"it does not run in bfloat16: {type(error).__name__}") from error
    for name, dtype, where in run.functions:
        if dtype in (torch.bfloat16, torch.float16):
            yield Finding(
                "rope-half-precision",
                "risk",
                f"in a bfloat16 module {name} gets angles in {str(dtype).removeprefix('torch.')}: it has 8 bits, so "
                "above 256 neighbouring positions have the same angle",
                "keep the frequencies in float32 and compute the angles in float32; cast cos and sin afterwards",
                where,
            )
            return
