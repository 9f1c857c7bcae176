"""A softmax that a float32 module computes in half precision: weights with 8 or 11 bits, and scores that overflow."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from headwise.doctor.finding import Finding
from headwise.doctor.patient import Patient
from headwise.doctor.reading.site import Site

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
            continue
        yield from _products(site)


def _products(site: Site) -> Iterator[Finding]:
    """Products in half precision, which kernels may need, and a softmax that is not."""
    operand = site.product.left
    if operand is not None and operand.value.dtype in _HALF:
        kind = str(operand.value.dtype).removeprefix("torch.")
        bits = "8 bits" if kind == "bfloat16" else "11 bits, and scores above 65504 become infinite"
        yield Finding(
            "softmax-half",
            "risk",
            f"in a float32 module the products of queries and keys are computed in {kind}, with {bits}",
            "cast no queries and keys down, unless a kernel needs it",
            site.product.where,
        )
