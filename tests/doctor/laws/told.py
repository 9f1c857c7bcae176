"""What a law says of a module, which must stay as it was."""

from __future__ import annotations

import contextlib

import torch
from torch import nn

from headwise.doctor.finding import Finding
from headwise.doctor.laws import Law
from headwise.doctor.patient import NotChecked, Patient


def told(law: Law, module: type[nn.Module] | nn.Module) -> list[Finding]:
    """The findings of a law about a module, or about a class that is built with the same weights in every run."""
    torch.manual_seed(0)
    made = module() if isinstance(module, type) else module
    before = {name: x.clone() for name, x in made.state_dict().items()}
    found: list[Finding] = []
    with contextlib.suppress(NotChecked):
        for finding in law.check(Patient(made)):
            found.append(finding)  # noqa: PERF402 (findings before it stops are kept)
    assert all(torch.equal(x, before[name]) for name, x in made.state_dict().items())
    return found


def names(law: Law, module: type[nn.Module] | nn.Module) -> list[tuple[str, str]]:
    """The name and the severity of each finding."""
    return [(x.name, x.severity) for x in told(law, module)]
