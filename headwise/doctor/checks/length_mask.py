"""A mask that a module makes of lengths: whether it hides the padding, and not the real tokens.

A speech encoder halves the frame rate first, so that no output belongs to a single frame, and no mask can be fitted.
Far from both ends of the real frames a change of one shows what the first output reads.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.probe import REACHED, Probe, moved, rows

FINDINGS = ("mask-polarity",)

_REAL, _LENGTH = 16, 32
_TOKEN, _PADDED = 12, 28  # the first output may be computed from its neighbours, by convolutions


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    names = [name for name, role in probe.interface.roles.items() if role == "lengths"]
    if len(names) != 1 or probe.interface.takes != "self" or not probe.interface.batched:
        raise NotApplicable("it takes no lengths")
    if any(mask.parameter == names[0] and mask.works for mask in probe.interface.masks):
        raise NotApplicable("its lengths hide the padding")
    inputs = probe.interface.inputs(2, _LENGTH, _LENGTH)
    given = {names[0]: torch.full((2,), _REAL)}
    before = probe.attempt(inputs, given=given)
    if not isinstance(before, Tensor):
        raise NotChecked(f"it does not run with {_LENGTH} tokens of which {_REAL} are real")
    changed = [probe.attempt(moved(inputs, slice(None), at), given=given) for at in (_TOKEN, _PADDED)]
    token, padded = (float(rows(before, x)[:, 0].amax()) if isinstance(x, Tensor) else 0.0 for x in changed)
    if padded > REACHED >= token:
        yield Finding(
            "mask-polarity",
            "bug",
            f"with {names[0]} = {_REAL} of {_LENGTH} tokens, token {_PADDED} changes the first output by {padded:.2g} "
            f"of its size, and token {_TOKEN} does not: the padding is attended to, and the real tokens are hidden",
            "invert the mask with ~: nn.MultiheadAttention hides where key_padding_mask is True, and "
            "scaled_dot_product_attention where attn_mask is False",
            patient.where,
            numbers={"padding": padded},
        )
