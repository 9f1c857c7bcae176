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
    lowered = any(x.dtype in (torch.bfloat16, torch.float16) for x in patient.original.parameters())
    for name, dtype, where in run.functions:
        if dtype in (torch.bfloat16, torch.float16):
            yield Finding(
                "rope-half-precision",
                "bug" if lowered else "risk",
                f"in a bfloat16 module {name} gets angles in {str(dtype).removeprefix('torch.')}: it has 8 bits, so "
                "above 256 neighbouring positions have the same angle",
                "keep the frequencies in float32 and compute the angles in float32; cast cos and sin afterwards",
                where,
            )
            return
    if any(x.is_floating_point() for x in patient.module.buffers()):
        return  # a table of frequencies, which .to(bfloat16) lowers whatever forward does
    exact = patient.see().run
    for (name, _, where), angle, right in zip(run.functions, run.angles, exact.angles, strict=False):
        if angle.shape != right.shape:
            return
        off = ((angle.double() - right.double()).abs() / right.double().abs().clamp(min=1e-6)).max()
        if 5e-4 < float(off) < 0.1:
            yield Finding(
                "rope-half-precision",
                "bug" if lowered else "risk",
                f"in a bfloat16 module the angles of {name} differ by up to {float(off):.1%} from those of a float32 "
                f"module: "
                "the frequencies were rounded to 8 bits, so that far positions are rotated wrongly",
                "keep the frequencies in float32 and compute the angles in float32; cast cos and sin afterwards",
                where,
                numbers={"off": float(off)},
            )
            return
