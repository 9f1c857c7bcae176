"""Whether an earlier call changes a later one: a mask, a table or keys that the module keeps from its first call.

Code that keeps what it has built often asks only whether it is there, or whether its shape fits. So the second call
gets other numbers, another mask, another length or another batch size; a copy that was not called before must agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from headwise.doctor.calling.copying import copied
from headwise.doctor.calling.interface import Inputs
from headwise.doctor.finding import Finding
from headwise.doctor.patient import Patient
from headwise.doctor.probing.masking import given
from headwise.doctor.probing.probe import ROUNDING, Probe, gap, quiet, sentence
from headwise.errors import DoctorError

FINDINGS = ("state-kept",)

Call = tuple[Inputs, dict[str, Any]]
_PARTS = 60  # modules with more parts are not examined part by part


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    inputs = probe.inputs()
    before = probe.answers(inputs)
    if gap(before, probe.output(inputs)) > 0:
        return  # the same input twice: checks/determinism.py
    layer = _layer(patient, inputs)
    if layer is not None:
        yield layer
        return
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


def _layer(patient: Patient, inputs: Inputs) -> Finding | None:
    """A part of the module that gives something else in it than alone: parts share something that one of them made."""
    probe, alone = Probe(patient), Probe(patient)
    met: dict[str, tuple[Any, Any, Any]] = {}

    def keep(name: str) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
            if name not in met:
                met[name] = (copied_values(args), copied_values(kwargs), out)

        return hook

    parts = [(n, x) for n, x in probe.module.named_modules() if n and not type(x).__module__.startswith("torch.")]
    if len(parts) < 2 or len(parts) > _PARTS:
        return None
    hooks = [part.register_forward_hook(keep(name), with_kwargs=True) for name, part in parts]
    problem = probe.attempt(inputs)
    for hook in hooks:
        hook.remove()
    if isinstance(problem, Exception):
        return None
    for name, (args, kwargs, out) in met.items():
        if not isinstance(out, Tensor) or not out.is_floating_point():
            continue
        try:
            twin = copied(alone.module.get_submodule(name))
            with quiet(), torch.no_grad():
                change = gap(out.detach(), twin(*args, **kwargs))
        except Exception:
            continue
        if change > ROUNDING:
            return Finding(
                "state-kept",
                "bug",
                f"{name} with the same input gives another output alone than inside of the module: they differ by "
                f"{change:.2g} of its size. It uses what another part has left, a mask or a table for example",
                "keep what is shared by everything that it depends on: length, window, dtype and device",
                numbers={"change": change},
            )
    return None


def copied_values(x: Any) -> Any:
    """Arguments as they are now: tensors cloned, containers copied."""
    if isinstance(x, Tensor):
        return x.detach().clone()
    if isinstance(x, dict):
        return {key: copied_values(part) for key, part in x.items()}
    if type(x) in (tuple, list):
        return type(x)(copied_values(part) for part in x)
    return x


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
