"""A soft cap after the mask: tanh makes of -inf the least logit that others may have, too, so masked keys count.

Gemma 2 caps its logits before the mask (Gemma Team 2024, arXiv:2408.00118, section 2).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from headwise.doctor.calling.claims import text_of
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.masking import hiding
from headwise.doctor.probing.probe import Probe

FINDINGS = ("masked-key-counts",)

_FORBIDDEN = -1e4
_TANH = {torch.tanh, Tensor.tanh, Tensor.tanh_, torch.nn.functional.tanh}


def check(patient: Patient) -> Iterator[Finding]:
    if "tanh" not in "".join(text_of(part) for part in patient.module.modules()):
        raise NotApplicable("its code has no tanh")
    probe = Probe(patient)
    inputs = probe.inputs()
    with _Tanh() as seen:
        for mask in ({}, *hiding(inputs, 1)):
            probe.attempt(inputs, **mask)
    if seen.lowest < _FORBIDDEN:
        yield Finding(
            "masked-key-counts",
            "bug",
            f"tanh gets scores down to {seen.lowest:.3g}: masked scores are capped like all others, so masked keys "
            "keep a weight",
            "cap the scores first, and mask them afterwards",
            patient.where,
        )


class _Tanh(TorchFunctionMode):
    """The lowest number that tanh was given."""

    def __init__(self) -> None:
        super().__init__()
        self.lowest = 0.0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _TANH and args and isinstance(args[0], Tensor) and args[0].numel():
            self.lowest = min(self.lowest, float(args[0].detach().min()))
        return func(*args, **(kwargs or {}))
