"""Positions times frequencies in half precision: bfloat16 is exact up to 256, so later positions share their angles.

The angles of a run in bfloat16 are compared with those of the same run in float32.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.finding import Finding, Where
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.reading.anatomy import look
from headwise.doctor.reading.creation import origin

FINDINGS = ("rope-half-precision",)

_EXACT, _FEW = 256, 0.1  # positions that bfloat16 holds exactly; a share of rows
_HALF = (torch.bfloat16, torch.float16)


def check(patient: Patient) -> Iterator[Finding]:
    """Look at the tables of cos and sin, and at the angles that are computed in a run."""
    for name, table in patient.module.named_buffers():
        if table.is_floating_point() and (same := repeated(table)) > _FEW:
            said = (
                f"of {name} {list(table.shape)}, {same:.0%} of the rows behind {_EXACT} are those of the position "
                "before: its positions or angles were computed in half precision"
            )
            yield _finding(said, origin(patient.module, name))
            return
    exact = patient.see().run
    if not exact.functions:
        raise NotApplicable("it computes no cos or sin in its forward")
    for (name, _, where), angle in zip(exact.functions, exact.angles, strict=True):
        if angle.dtype not in _HALF and rounded(angle):
            said = f"in a module of single precision all angles of {name} are numbers of half precision"
            yield _finding(f"{said}: they were computed in it, so that far positions share their angle", where)
            return
    try:
        run = look(patient, dtype=torch.bfloat16).run
    except Exception as error:
        raise NotChecked(f"it does not run in bfloat16: {type(error).__name__}") from error
    lowered = any(x.is_floating_point() for x in patient.module.buffers())  # by .to(bfloat16), whatever forward does
    for (name, dtype, where), angle, right in zip(run.functions, run.angles, exact.angles, strict=False):
        off = 0.0 if angle.shape != right.shape else error_of(angle, right)
        if dtype in _HALF or (5e-4 < off < 0.1 and not lowered):
            said = f"the angles of {name} are {str(angle.dtype).removeprefix('torch.')}, and off by up to {off:.1%}"
            yield _finding(
                f"in a bfloat16 module {said}: with 8 bits neighbouring positions above 256 have the same angle, and "
                "far ones are rotated wrongly",
                where,
                certain=patient.in_half,
            )
            return


def _finding(evidence: str, where: Where | None, *, certain: bool = True) -> Finding:
    fix = "keep the frequencies in float32 and compute the angles in float32; cast cos and sin afterwards"
    return Finding("rope-half-precision", "bug" if certain else "risk", evidence, fix, where)


def error_of(angle: Tensor, right: Tensor) -> float:
    """Return the largest error of an angle, relative to the right one."""
    right = right.double()
    return float(((angle.double() - right).abs() / right.abs().clamp(min=1e-6)).max()) if right.numel() else 0.0


def rounded(angles: Tensor) -> bool:
    """Whether a half precision holds all these angles exactly; False if they are too few to tell."""
    fractions = angles[angles != angles.round()].unique()
    return len(fractions) >= 8 and any(torch.equal(fractions.to(x).to(fractions.dtype), fractions) for x in _HALF)


def repeated(table: Tensor) -> float:
    """The share of the rows [..., N, D] behind position 256 that are those of the row before; 0 if earlier ones are."""
    rows = table.detach().float().flatten(0, -2) if table.ndim > 1 else table
    if table.ndim < 2 or table.shape[-1] < 2 or table.shape[-2] != len(rows) or len(rows) < 2 * _EXACT:
        return 0.0
    same = (rows[1:] == rows[:-1]).all(-1)
    return 0.0 if float(same[:_EXACT].float().mean()) > _FEW else float(same[_EXACT:].float().mean())
