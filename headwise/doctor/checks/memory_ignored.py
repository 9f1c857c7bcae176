"""A memory that changes nothing: it is an argument of forward, and no layer gets it.

A block that is called without it usually attends to its own tokens instead, so that no shape shows it.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.calling.interface import Inputs
from headwise.doctor.calling.way import tensors_in
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.probe import Probe, moved
from headwise.doctor.reading.creation import functions

FINDINGS = ("memory-ignored",)


def check(patient: Patient) -> Iterator[Finding]:
    also = patient.interface.also
    if "memory" in also:
        patient = Patient(
            patient.original, spec=dataclasses.replace(patient.spec, takes="memory"), example=patient.example
        )
    if patient.interface.takes == "self":
        raise NotApplicable("it takes no memory")
    name = next(name for role, name in patient.interface.way.slots if role in ("memory", "key"))
    if also and _is_read(patient, name) and _switches(patient):
        raise NotApplicable("a setting may switch off that it attends to its memory")
    probe = Probe(patient)
    inputs = probe.inputs()
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
    found = (x for _, x in tensors_in(probe.run(inputs).raw))
    return [
        x
        for x in found
        if not any(x.shape == y.shape and torch.equal(x, y) for y in (inputs.key, inputs.value) if y is not None)
    ]


def _switches(patient: Patient) -> bool:
    """Whether the code of one of its parts decides something by an attribute, or cannot be read."""
    parts = {type(x): x for x in patient.module.modules() if not type(x).__module__.startswith("torch.")}
    found = [function for part in parts.values() for _, _, function in functions(part)]
    tests = [x.test for function in found for x in ast.walk(function) if isinstance(x, (ast.If, ast.IfExp))]
    return not found or any(
        isinstance(x, ast.Attribute) and isinstance(x.value, ast.Name) and x.value.id == "self"
        for test in tests
        for x in ast.walk(test)
    )


def _is_read(patient: Patient, name: str) -> bool:
    """Whether the code of forward uses this argument, or cannot be read."""
    found = [function for _, _, function in functions(patient.module) if function.name == "forward"]
    return not found or any(isinstance(x, ast.Name) and x.id == name for x in ast.walk(found[0]))
