"""A mask that is said to hold 0 and 1, and masks otherwise when it holds these integers than when it is boolean.

`~mask` inverts a boolean mask. Of the integers 0 and 1 it makes -1 and -2, which are both true.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.checks.mask_claims import one_each, quoted
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.masking import given
from headwise.doctor.probing.probe import ROUNDING, Probe, gap

FINDINGS = ("mask-ignored",)

_INTEGERS = re.compile(r"\b[01]s?\b|\blong|\bint", re.IGNORECASE)
_BOOLEAN = re.compile(r"\bbool|\btrue|\bfalse", re.IGNORECASE)


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    masks = [
        mask
        for mask in one_each(list(patient.interface.masks))
        if mask.works and mask.dtype == torch.bool and _INTEGERS.search(mask.claim) and not _BOOLEAN.search(mask.claim)
    ]
    if not masks:
        raise NotApplicable("no mask is said to hold 0 and 1")
    inputs = probe.inputs()
    for mask in masks:
        options = given(probe.interface, mask, inputs, 1)
        integers = {name: x.long() for name, x in options.items()}
        as_bool, as_integers = (probe.attempt(inputs, given=x) for x in (options, integers))
        if not isinstance(as_bool, Tensor) or not isinstance(as_integers, Tensor):
            continue  # an error is not silent
        change = gap(as_bool, as_integers)
        if change > ROUNDING:
            yield Finding(
                "mask-ignored",
                "bug",
                f"{quoted(mask.claim)} says that `{mask.parameter}` holds 0 and 1; with these integers the output "
                f"differs from that with a boolean mask by {change:.2g} of its size",
                f"make it boolean before it is inverted or indexed with: {mask.parameter} = {mask.parameter}.bool()",
                patient.where,
                numbers={"change": change},
            )
