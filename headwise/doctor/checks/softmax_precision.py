"""A softmax that a float32 module computes in half precision: weights with 8 or 11 bits, and scores that overflow."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from headwise.doctor.finding import Finding
from headwise.doctor.patient import Patient

FINDINGS = ("softmax-half",)

_HALF = (torch.float16, torch.bfloat16)


def check(patient: Patient) -> Iterator[Finding]:
    anatomy = patient.see()
    if anatomy.inputs.query.dtype in _HALF:
        return
    for site in anatomy.sites:
        if site.softmax.dtypes[0] in _HALF:
            kind = str(site.softmax.dtypes[0]).removeprefix("torch.")
            yield Finding(
                "softmax-half",
                "bug",
                f"in a {str(anatomy.inputs.query.dtype).removeprefix('torch.')} module the scores are cast to {kind} "
                "before the softmax"
                + (", where scores above 65504 become infinite" if kind == "float16" else ", with 8 bits each"),
                "compute the softmax in float32, and cast its result if needed",
                site.softmax.where,
            )
