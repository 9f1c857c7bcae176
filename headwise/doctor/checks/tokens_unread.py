"""Tokens behind some position that no other token sees: keys or a mask cut to the size of the wrong dimension.

`mask[:, : k.shape[-2]]` cuts to the number of heads where k is [B, N, H, D], and no shape shows it. Which outputs
change with which tokens is probed; in healthy attention, causal or not, only the last token may be seen by none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from headwise.doctor.calling.interface import Inputs
from headwise.doctor.calling.way import noise
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
    fixed = patient.example is not None and bool(probe.interface.way.extras)  # positions, for as many tokens
    length = probe.interface.length or (probe.interface.way.lengths[0] if fixed else _LENGTH)
    inputs = probe.interface.inputs(1, length, length)
    before = probe.rowwise(inputs)
    for key in range(max(0, length - _FEWEST), length):
        reached = rows(before, probe.output(moved(inputs, 0, key)))[0] > REACHED
        if bool(reached[torch.arange(length) != key].any()):
            return
    last = _last(probe, inputs)
    if last is None:
        raise NotApplicable("no token changes the output of another")
    if any(now != last for now in _elsewhere(probe, inputs)):
        raise NotApplicable("how far it reads depends on numbers that it is given")
    yield Finding(
        "tokens-unread",
        "bug",
        f"of {length} tokens, none behind position {last} changes the output of another one: the keys behind it "
        "are not read",
        "find what cuts the keys, the values or the mask: the size of another dimension, such as the number of heads",
        numbers={"last": float(last), "tokens": float(length)},
    )


def _elsewhere(probe: Probe, inputs: Inputs) -> Iterator[int]:
    """The last position that is seen where the other arguments hold other numbers: a window that is predicted moves."""
    way = probe.interface.way
    for name, make in way.extras:
        x = make(way.sizes(inputs))
        if not isinstance(x, Tensor) or not x.is_floating_point():
            continue
        for seed in range(3):
            other = 30 * noise(*x.shape, seed=seed, dtype=x.dtype, device=x.device)
            try:
                last = _last(probe, inputs, given={name: other})
            except Exception:  # it does not run with these numbers
                break
            if last is not None:
                yield last


def _last(probe: Probe, inputs: Inputs, **options: Any) -> int | None:
    """The last position whose token changes the output of another one."""
    reached = probe.influence(inputs, **options) > REACHED
    seen = (reached & ~torch.eye(len(reached), dtype=torch.bool)).any(0).nonzero()
    return int(seen.max()) if len(seen) else None
