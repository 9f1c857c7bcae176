"""Weights that are all 0 at initialisation and stay there: two in a row, each of which waits for the other.

One layer of zeros (LoRA, ReZero, adaLN-Zero) gets a gradient in the first step. Two that are multiplied get none, and
whatever is behind them neither.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.listen import Dice
from headwise.doctor.probing.probe import Probe, gradients, quiet
from headwise.doctor.probing.reached import gradients_of, trainable
from headwise.doctor.reading.creation import origin

FINDINGS = ("zero-start",)

_STEPS = 3  # a step of the others may wake it


def check(patient: Patient) -> Iterator[Finding]:
    twin = patient.as_given()
    zero = {
        name: x
        for name, x in twin.module.named_parameters()
        if not isinstance(x, nn.UninitializedParameter) and x.ndim >= 2 and x.requires_grad and not x.any()
    }
    if len(zero) < 2:
        raise NotApplicable("no two of its weights begin with 0")
    probe = Probe(patient)
    inputs = probe.inputs()
    reached = gradients_of(probe, inputs, trainable(probe)) or {}  # where nothing is 0
    waiting = {name: x for name, x in zero.items() if name in reached}
    for seed in range(_STEPS):
        parameters = [x for x in twin.module.parameters() if x.requires_grad]
        with quiet(seed), Dice(still=True), torch.enable_grad():
            try:
                out = twin.interface.run(inputs.each(Tensor.clone), grad=True).output
                found = gradients(out, parameters)
            except Exception as problem:
                raise NotChecked(f"no gradient can be computed: {type(problem).__name__}") from problem
        with torch.no_grad():
            for x, slope in zip(parameters, found, strict=True):
                if slope is not None:
                    x.sub_(0.01 * slope)
        waiting = {name: x for name, x in waiting.items() if not x.any()}
    if len(waiting) < 2:
        return
    listed = " and ".join(sorted(waiting)) if len(waiting) == 2 else f"{len(waiting)} weights, {min(waiting)} first,"
    yield Finding(
        "zero-start",
        "bug",
        f"{listed} begin with 0 and stay 0: after {_STEPS} steps of gradient descent none of them has got a gradient, "
        "because each is multiplied by the other",
        "initialise all but the last of them with small random numbers",
        where=origin(patient.module, min(waiting)),
        numbers={"weights": len(waiting)},
    )
