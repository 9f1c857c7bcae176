"""Tokens behind some position that no other token sees: keys or a mask cut to the size of the wrong dimension.

`mask[:, : k.shape[-2]]` cuts to the number of heads where k is [B, N, H, D], and no shape shows it. Which outputs
change with which tokens is probed; in healthy attention, causal or not, only the last token may be seen by none.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.probe import REACHED, Probe, moved, rows

FINDINGS = ("tokens-unread",)

_LENGTH = 20  # more than the usual number of heads in a small module
_FEWEST = 3


def check(patient: Patient) -> Iterator[Finding]:
    if patient.interface.takes != "self":
        raise NotApplicable("its queries and keys are not one sequence")
    probe = Probe(patient)
    length = probe.interface.length or _LENGTH
    inputs = probe.interface.inputs(1, length, length)
    before = probe.rowwise(inputs)
    for key in range(max(0, length - _FEWEST), length):
        reached = rows(before, probe.output(moved(inputs, 0, key)))[0] > REACHED
        if bool(reached[torch.arange(length) != key].any()):
            return
    others = (probe.influence(inputs) > REACHED) & ~torch.eye(length, dtype=torch.bool)
    seen = others.any(0).nonzero()  # positions of keys
    if not len(seen):
        raise NotApplicable("no token changes the output of another")
    last = int(seen.max())
    yield Finding(
        "tokens-unread",
        "bug",
        f"of {length} tokens, none behind position {last} changes the output of another one: the keys behind it "
        "are not read",
        "find what cuts the keys, the values or the mask: the size of another dimension, such as the number of heads",
        numbers={"last": float(last), "tokens": float(length)},
    )
