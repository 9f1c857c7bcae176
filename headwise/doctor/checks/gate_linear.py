"""A gate on the attended values that its text calls a sigmoid's, and that no sigmoid is taken of."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from headwise.doctor.calling.claims import text_of
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.dispatch import Dispatching
from headwise.doctor.probing.probe import Probe

FINDINGS = ("gate-linear",)

_SAYS = re.compile(r"sigmoid[- ]gat\w*|sigmoid (output )?gate|gat(e|es|ed|ing)\b[^.]{0,40}\bsigmoid", re.IGNORECASE)
_GATE = re.compile(r"(^|_|to)gat(e|es|ing)(_|$)", re.IGNORECASE)
_BOUNDED = ("sigmoid", "silu", "tanh", "hardsigmoid", "glu", "log_sigmoid_forward", "hardtanh", "clamp", "exp")


def check(patient: Patient) -> Iterator[Finding]:
    gates = {path: part for path, part in patient.module.named_modules() if _GATE.search(path.rpartition(".")[2])}
    holders = {path.rpartition(".")[0] for path in gates}
    said = any(_SAYS.search(text_of(patient.module.get_submodule(path))) for path in holders)
    if not gates or not said:
        raise NotApplicable("no text says that it has a gate with a sigmoid")
    probe = Probe(patient)
    inputs = probe.inputs()
    probe.answers(inputs)
    called: list[str] = []
    for path in gates:
        part = probe.module.get_submodule(path)
        part.register_forward_hook(lambda *_, path=path: called.append(path))
    seen = _Names()
    with torch.no_grad(), seen:
        probe.interface.run(inputs)
    if called and not any(name.rstrip("_") in _BOUNDED for name in seen.names):
        yield Finding(
            "gate-linear",
            "bug",
            f"its text says that {called[0]} is a gate with a sigmoid, but forward takes no sigmoid: the attended "
            "values are multiplied by any number",
            f"multiply by {called[0]}(x).sigmoid()",
            patient.where,
        )


class _Names(Dispatching):
    """The names of all operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))
