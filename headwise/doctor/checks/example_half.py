"""The example's own call of a module in half precision: NaN or infinity that float32 does not give.

A lowest number of half precision, as a mask, plus a negative score is -inf, and a row of them is NaN. Whether that
happens depends on the size of the scores, which the example knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from headwise.doctor.calling.copying import at_rest
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.probe import quiet
from headwise.doctor.reading.marks import tensors_in

FINDINGS = ("mask-overflows-half", "softmax-unstable")

_LOW = (torch.float16, torch.bfloat16)


def check(patient: Patient) -> Iterator[Finding]:
    kinds = {x.dtype for x in patient.original.parameters() if x.is_floating_point()}
    if patient.example is None or len(kinds) != 1 or not kinds <= set(_LOW):
        raise NotApplicable("it is not in half precision, or there is no example")
    kind = kinds.pop()
    modules = at_rest(patient.original).cpu(), at_rest(patient.original).cpu().float()
    outs = []
    for module, dtype in zip(modules, (kind, torch.float32), strict=True):
        args, named = (_to(x, dtype) for x in patient.example)
        try:
            with torch.no_grad(), quiet():
                out = next(x for x in tensors_in(module(*args, **named)) if x.is_floating_point())
        except Exception as problem:
            raise NotChecked(f"the example does not run in {dtype}: {type(problem).__name__}") from problem
        outs.append(out)
    low, high = (x.isfinite() for x in outs)
    if low.shape != high.shape or not bool(high.all()) or bool(low.all()):
        return
    rows = int((~low).flatten(0, -2).any(-1).sum()) if low.ndim > 1 else 1
    of = low.flatten(0, -2).shape[0] if low.ndim > 1 else 1
    masked = bool(patient.interface.masks)
    yield Finding(
        "mask-overflows-half" if masked else "softmax-unstable",
        "bug",
        f"the example's own call in {str(kind).removeprefix('torch.')} gives NaN or infinity in {rows} of {of} rows; "
        "in float32 all are finite",
        "clamp the masked scores to the lowest number of their dtype, and take the softmax in float32"
        if masked
        else "take the softmax in float32, and scale queries before the product",
        patient.where,
        numbers={"rows": rows, "of": of},
    )


def _to(x: Any, dtype: torch.dtype) -> Any:
    if isinstance(x, Tensor):
        return x.clone().cpu().to(dtype) if x.is_floating_point() else x.clone().cpu()
    if isinstance(x, dict):
        return {name: _to(part, dtype) for name, part in x.items()}
    if type(x) in (tuple, list):
        return type(x)(_to(part, dtype) for part in x)
    return x
