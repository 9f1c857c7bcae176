"""A soft cap after the mask: tanh makes of -inf the least logit that others may have, too, so masked keys count.

Gemma 2 caps its logits before the mask (Gemma Team 2024, arXiv:2408.00118, section 2).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.calling.claims import text_of_all
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.listen import Calls
from headwise.doctor.probing.masking import hiding
from headwise.doctor.probing.probe import Probe

FINDINGS = ("masked-key-counts",)

_FORBIDDEN = -1e4
_TANH = {torch.tanh, Tensor.tanh, Tensor.tanh_, torch.nn.functional.tanh}


def check(patient: Patient) -> Iterator[Finding]:
    if "tanh" not in text_of_all(patient.module):
        raise NotApplicable("its code has no tanh")
    probe = Probe(patient)
    inputs = probe.inputs()
    with Calls(_TANH, lambda x: float(x.detach().min()) if x.numel() else 0.0) as seen:
        for mask in ({}, *hiding(inputs, 1)):
            probe.attempt(inputs, **mask)
    lowest = min(seen.noted, default=0.0)
    if lowest < _FORBIDDEN:
        yield Finding(
            "masked-key-counts",
            "bug",
            f"tanh gets scores down to {lowest:.3g}: masked scores are capped like all others, so masked keys "
            "keep a weight",
            "cap the scores first, and mask them afterwards",
            patient.where,
        )
