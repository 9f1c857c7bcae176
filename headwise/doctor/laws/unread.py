"""The law: every token but the last is seen by another one, and a memory that is passed reaches something."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from headwise.doctor.calling.interface import Inputs
from headwise.doctor.calling.way import noise, tensors_in
from headwise.doctor.finding import Finding
from headwise.doctor.patient import Patient
from headwise.doctor.probing.probe import REACHED, Probe, moved, rows

FINDINGS = ("tokens-unread", "memory-ignored")

_LENGTH = 20  # more than the usual number of heads in a small module
_FEWEST = 3


def check(patient: Patient) -> Iterator[Finding]:
    yield from (_tokens if patient.interface.takes == "self" else _memory)(patient, Probe(patient))


def _tokens(patient: Patient, probe: Probe) -> Iterator[Finding]:
    """Tokens behind some position that no other token sees: keys or a mask cut to the size of the wrong dimension.

    `mask[:, : k.shape[-2]]` cuts to the number of heads where k is [B, N, H, D], and no shape shows it.
    """
    way = probe.interface.way
    fixed = patient.example is not None and bool(way.extras)  # positions, for as many tokens
    length = probe.interface.length or (way.lengths[0] if fixed else _LENGTH)
    inputs = probe.interface.inputs(1, length, length)
    before, others = probe.attempt(inputs), torch.arange(length)
    if not isinstance(before, Tensor) or before.shape[:2] != (1, length) or not bool(before.isfinite().any()):
        return
    for key in range(max(0, length - _FEWEST), length):
        if bool((rows(before, probe.output(moved(inputs, 0, key)))[0] > REACHED)[others != key].any()):
            return
    last = _last_seen(probe, inputs)
    if last is None or any(now != last for now in _with_other_numbers(probe, inputs)):
        return  # no token changes the output of another, or how far it reads depends on numbers that it is given
    yield Finding(
        "tokens-unread",
        "bug",
        f"of {length} tokens, none behind position {last} changes the output of another one: the keys behind it "
        "are not read",
        "find what cuts the keys, the values or the mask: the size of another dimension, such as the number of heads",
        numbers={"last": float(last), "tokens": float(length)},
    )


def _with_other_numbers(probe: Probe, inputs: Inputs) -> Iterator[int | None]:
    """The last position that is seen where the other arguments hold other numbers: a window that is predicted moves."""
    way = probe.interface.way
    for name, make in way.extras:
        x = make(way.sizes(inputs))
        for seed in range(3) if isinstance(x, Tensor) and x.is_floating_point() else ():
            other = 30 * noise(*x.shape, seed=seed, dtype=x.dtype, device=x.device)
            if isinstance(probe.attempt(inputs, given={name: other}), Tensor):
                yield _last_seen(probe, inputs, given={name: other})


def _last_seen(probe: Probe, inputs: Inputs, **options: Any) -> int | None:
    """The last position whose token changes the output of another one."""
    reached = probe.influence(inputs, **options) > REACHED
    seen = (reached & ~torch.eye(len(reached), dtype=torch.bool)).any(0).nonzero()
    return int(seen.max()) if len(seen) else None


def _memory(patient: Patient, probe: Probe) -> Iterator[Finding]:
    """A memory that changes nothing that is returned but the memory itself: no layer gets it."""
    name = next((name for role, name in patient.interface.way.slots if role in ("memory", "key")), None)
    inputs = probe.inputs()
    if name is None or patient.interface.also or isinstance(probe.attempt(inputs), Exception):
        return  # where a memory may be left out, a setting may switch off that it is attended to
    probe.answers(inputs)
    before, after = (_returned(probe, x) for x in (inputs, moved(inputs, slice(None))))
    if len(before) == len(after) and all(map(torch.equal, before, after)):
        yield Finding(
            "memory-ignored",
            "bug",
            f"with other numbers in {name} the output is the same: nothing attends to it",
            f"pass {name} on to the layers that attend to it",
            patient.where,
        )


def _returned(probe: Probe, inputs: Inputs) -> list[Tensor]:
    """All that is returned but the memory itself: it may reach the learned queries that come back beside the text."""
    given = [x for x in (inputs.key, inputs.value) if x is not None]
    found = (x for _, x in tensors_in(probe.run(inputs).raw))
    return [x for x in found if not any(x.shape == y.shape and torch.equal(x, y) for y in given)]
