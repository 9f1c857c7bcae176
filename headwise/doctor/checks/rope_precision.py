"""Positions times frequencies in half precision: bfloat16 is exact up to 256, so later positions share their angles."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.reading.anatomy import look
from headwise.doctor.reading.creation import origin
from headwise.doctor.reading.documents import documents

FINDINGS = ("rope-half-precision",)

_TABLE = re.compile(r"cos|sin|freq|angle|rope|rotary")
_EXACT, _FEW = 256, 0.1  # positions that bfloat16 holds exactly; a share of rows
_LOWERED = re.compile(r"\b(train|runs?|used?|serve)\w*\b[^\n]{0,60}\b(bfloat16|bf16|float16|fp16)\b", re.IGNORECASE)
HALF = (torch.bfloat16, torch.float16)


def _rounded_to(angles: torch.Tensor) -> torch.dtype | None:
    """The half precision that holds all these angles exactly; None if there is none, or if they are too few to tell."""
    fractions = angles[angles != angles.round()].unique()
    if len(fractions) < 8:
        return None
    return next((x for x in HALF if torch.equal(fractions.to(x).to(fractions.dtype), fractions)), None)


def check(patient: Patient) -> Iterator[Finding]:
    for name, table in patient.module.named_buffers():
        if _TABLE.search(name) and table.is_floating_point() and (same := _alike(table)) > _FEW:
            yield Finding(
                "rope-half-precision",
                "bug",
                f"of {name} {list(table.shape)}, {same:.0%} of the rows behind {_EXACT} are those of the position "
                "before: its positions or angles were computed in half precision",
                "multiply positions and frequencies in float32; cast cos and sin afterwards",
                origin(patient.module, name),
                numbers={"same": same},
            )
            return
    exact = patient.see().run
    if not exact.functions and "cos" not in patient.source and "polar" not in patient.source:
        raise NotApplicable("it computes no cos or sin in its forward")
    for (name, dtype, where), angle in zip(exact.functions, exact.angles, strict=False):
        if (half := _rounded_to(angle)) is not None and dtype not in HALF:
            yield Finding(
                "rope-half-precision",
                "bug",
                f"in a module of {_plain(angle.dtype)} all angles of {name} are numbers of {_plain(half)}: they were "
                "computed in it, so that far positions share their angle",
                "multiply positions and frequencies in float32; cast cos and sin afterwards",
                where,
            )
            return
    try:
        run = look(patient, dtype=torch.bfloat16).run
    except Exception as error:
        raise NotChecked(f"it does not run in bfloat16: {type(error).__name__}") from error
    said = _LOWERED.search("\n".join(documents(patient.module))) is not None  # that it is used so
    lowered = said or any(x.dtype in HALF for x in patient.original.parameters())
    for name, dtype, where in run.functions:
        if dtype in HALF:
            yield Finding(
                "rope-half-precision",
                "bug" if lowered else "risk",
                f"in a bfloat16 module {name} gets angles in {_plain(dtype)}: it has 8 bits, so "
                "above 256 neighbouring positions have the same angle",
                "keep the frequencies in float32 and compute the angles in float32; cast cos and sin afterwards",
                where,
            )
            return
    if any(x.is_floating_point() for x in patient.module.buffers()):
        return  # a table of frequencies, which .to(bfloat16) lowers whatever forward does
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


def _alike(table: torch.Tensor) -> float:
    """The share of the rows [..., N, D] behind position 256 that are those of the row before."""
    if table.ndim < 2:
        return 0.0
    rows = table.detach().float().flatten(0, -2)
    if table.shape[-1] < 2 or table.shape[-2] != len(rows) or len(rows) < 2 * _EXACT:
        return 0.0
    return float((rows[_EXACT + 1 :] == rows[_EXACT:-1]).all(-1).float().mean())


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
