"""A head mask of 0 switches a head off: with all heads masked, no token reaches the output of another.

A mask that multiplies the scores before the softmax leaves a masked head with the same weight for every key.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.probe import REACHED, Probe, gap, moved

FINDINGS = ("head-mask-ignored",)


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    name = next((x for x in probe.interface.roles if x.endswith("head_mask") and "cross" not in x), None)
    heads = probe.interface.heads
    if name is None or heads is None or patient.anatomy is None or len(patient.anatomy.sites) != 1:
        raise NotApplicable("forward takes no head mask, or is a stack of layers")
    inputs = probe.inputs()
    whole = probe.rowwise(inputs)
    for shape in ((heads,), (1, heads, 1, 1)):
        ones, zeros = (torch.full(shape, x) for x in (1.0, 0.0))
        with_all = probe.attempt(inputs, given={name: ones})
        if not isinstance(with_all, Tensor) or gap(whole, with_all) > REACHED:
            continue  # not its shape, or 1 hides a head
        masked, changed = (
            probe.attempt(x, given={name: zeros}) for x in (inputs, moved(inputs, 0, 0, queries=not probe.crosses))
        )
        if not isinstance(masked, Tensor) or not isinstance(changed, Tensor) or not bool(masked.isfinite().all()):
            continue
        reached = gap(masked[:, 1:], changed[:, 1:])
        if reached > REACHED:
            yield Finding(
                "head-mask-ignored",
                "bug",
                f"with {name} = 0 for all {heads} heads, a change of token 0 still changes the outputs of other "
                f"tokens, by up to {reached:.2g} of the output's size",
                "multiply the weights by the head mask after the softmax, not the scores before it",
                numbers={"change": reached},
            )
        return
    raise NotChecked(f"the form of {name} is not known")
