"""Whether an earlier call changes a later one: a mask, a table or keys that the module keeps from its first call.

Code that keeps what it has built often asks only whether it is there, or whether its shape fits. So the second call
gets other numbers, another mask, another length or another batch size; a copy that was not called before must agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headwise.doctor.calling.interface import Inputs
from headwise.doctor.finding import Finding
from headwise.doctor.patient import Patient
from headwise.doctor.probing.masking import given
from headwise.doctor.probing.probe import ROUNDING, Probe, gap, sentence
from headwise.errors import DoctorError

FINDINGS = ("state-kept",)

Call = tuple[Inputs, dict[str, Any]]


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    inputs = probe.inputs()
    before = probe.answers(inputs)
    if gap(before, probe.output(inputs)) > 0:
        return  # the same input twice: checks/determinism.py
    for what, first, second in _pairs(probe, inputs):
        used, unused = Probe(patient), Probe(patient)
        if isinstance(used.attempt(first[0], given=first[1]), Exception):
            continue
        expected = unused.attempt(second[0], given=second[1])
        if isinstance(expected, Exception):
            continue
        out = used.attempt(second[0], given=second[1])
        change = float("inf") if isinstance(out, Exception) else gap(expected, out)
        if change > ROUNDING:
            so = (
                f"raises {sentence(out)}"
                if isinstance(out, Exception)
                else f"differs by {change:.2g} of the output's size from the same call of a module that was not called "
                "before"
            )
            yield Finding(
                "state-kept",
                "bug",
                f"after a call, one with {what} {so}: the module keeps something of its first call",
                "keep nothing that depends on the inputs, or keep it by everything that it depends on: length, batch "
                "size, contents of the mask, dtype and device",
                numbers={} if isinstance(out, Exception) else {"change": change},
            )
            return


def _pairs(probe: Probe, inputs: Inputs) -> Iterator[tuple[str, Call, Call]]:
    """Two calls that differ in one thing, and its name."""
    yield "other numbers", (inputs, {}), (probe.inputs(seed=1), {})
    names = dict.fromkeys(m.parameter for m in probe.interface.masks if m.works)
    for name in names:
        mask = next(m for m in probe.interface.masks if m.parameter == name and m.works)
        keys = (inputs.key_length - 1, inputs.key_length - 2) if mask.shape == "B" else (1, 2)
        try:
            hidden = [given(probe.interface, mask, inputs, *keys[: i + 1]) for i in range(2)]
        except DoctorError:
            continue
        yield f"another {name}", (inputs, hidden[0]), (inputs, hidden[1])
        yield f"another {name} after one without it", (inputs, {}), (inputs, hidden[0])
    if probe.interface.length is None:
        short, long = probe.inputs(length=4), probe.inputs(length=9)
        yield "more tokens", (short, {}), (long, {})
        yield "fewer tokens", (long, {}), (short, {})
    if probe.interface.batched:
        yield "another batch size", (inputs, {}), (probe.inputs(batch=2), {})
