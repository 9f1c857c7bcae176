"""Whether inputs in another memory layout give the same output: view() raises on them, or reads them wrongly."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.calling.interface import Inputs
from headwise.doctor.finding import Finding
from headwise.doctor.patient import Patient
from headwise.doctor.probing.probe import ROUNDING, Probe, gap, quiet, sentence

FINDINGS = ("noncontiguous-input",)


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    inputs = probe.inputs()
    expected = probe.answers(inputs)
    ways = {
        "a transpose of [B, M, N]": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        "a transpose of [N, B, M]": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
        "every second number of a wider tensor": lambda x: torch.stack([x, x], -1).flatten(-2)[..., ::2],
    }
    for name, way in ways.items():
        out = _given(probe, inputs.each(way))
        if isinstance(out, Tensor):
            change = gap(expected, out)
            if change > ROUNDING:
                yield Finding(
                    "noncontiguous-input",
                    "bug",
                    f"the same input as {name} gives another output: up to {change:.2g} of its size",
                    "read inputs by index, not by memory address: no as_strided, data_ptr or set_ on them",
                    numbers={"change": change},
                )
                return
        else:
            yield Finding(
                "noncontiguous-input",
                "risk",
                f"the same input as {name} makes it raise {sentence(out)}",
                "use reshape() where the input may be a view of another tensor, or call contiguous() first",
            )
            return


def _given(probe: Probe, inputs: Inputs) -> Tensor | Exception:
    """The output for exactly these tensors: a copy would be contiguous."""
    try:
        with quiet():
            return probe.interface.run(inputs).output.detach()
    except Exception as problem:
        return problem
