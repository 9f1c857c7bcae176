"""Whether NaN in a masked key reaches the output: 0 · NaN is NaN, so in most implementations it does."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.calling.interface import Inputs
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.masking import hiding
from headwise.doctor.probing.probe import Probe

FINDINGS = ("masked-nan-leaks",)


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    inputs = probe.inputs()
    probe.rowwise(inputs)
    for options in reversed(hiding(inputs, 1)):
        usual = probe.attempt(inputs, **options)
        if isinstance(usual, Exception) or not usual.isfinite().all():
            continue
        out = probe.attempt(_spoilt(inputs), **options)
        if isinstance(out, Tensor):
            own = torch.zeros(out.shape[:2], dtype=torch.bool)
            own[:, 1:2] = not probe.crosses  # its own query is NaN in any case
            reached = ~out.isfinite().all(-1) & ~own
            if reached.any():
                yield Finding(
                    "masked-nan-leaks",
                    "note",
                    f"NaN in a key that is masked for every query makes {int(reached.sum())} of the "
                    f"{int((~own).sum())} other rows NaN: its weight is 0, and 0 · NaN is NaN",
                    "fill padding with numbers (zeros), not with uninitialised memory; or set masked values to zero "
                    "before the product",
                    numbers={"rows": int(reached.sum()), "of": int((~own).sum())},
                )
            return
    raise NotApplicable("it takes no mask")


def _spoilt(inputs: Inputs) -> Inputs:
    def spoil(x: Tensor) -> Tensor:
        x = x.clone()
        x[:, 1:2] = torch.nan
        return x

    spoilt = inputs.each(spoil)
    if inputs.key is not None:
        return dataclasses.replace(spoilt, query=inputs.query)
    return spoilt
