"""Whether a call changes what later calls give: stale keys, stale tables, a dropout that is switched off for good.

A copy of the module is called with one input and then with another; a second copy with the other input alone. Shorter
and longer inputs, another number of examples, and train mode come first. The copies are made of the module as it was
given, since the trials that found out how to call it were calls, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from headwise.doctor.calling.copying import copied
from headwise.doctor.calling.interface import Inputs
from headwise.doctor.finding import Finding
from headwise.doctor.patient import Patient
from headwise.doctor.probing.probe import ROUNDING, Probe, awake, gap, sentence

FINDINGS = ("state-kept", "train-eval-differ")

_RESETS = re.compile(r"^(reset|clear|flush|empty|init)_?\w*(cache|state|memory|buffer|kv|mem)|^reset$", re.IGNORECASE)


def check(patient: Patient) -> Iterator[Finding]:
    probe = _anew(patient)
    probe.answers(probe.inputs())
    found = next(_stale(patient), None)
    if found is not None:
        yield found
        return
    yield from _switched_off(patient)


def _anew(patient: Patient) -> Probe:
    """A copy of the module as it was given, without traces of the doctor's own calls."""
    probe = Probe(patient)
    module = copied(patient.original).cpu()
    if any(x.dtype in (torch.float16, torch.bfloat16) for x in module.parameters()):
        module = module.float()
    probe.module = module.eval()
    probe.interface = probe.interface.on(module)
    awake(module)
    return probe


def _stale(patient: Patient) -> Iterator[Finding]:
    probe = _anew(patient)
    fixed = patient.interface.length is not None
    pairs = [("another input of the same size", probe.inputs(3, 5, seed=7), probe.inputs(3, 5))]
    if not fixed:
        pairs += [
            ("a longer input", probe.inputs(3, 9, seed=7), probe.inputs(3, 5)),
            ("a shorter input", probe.inputs(3, 4, seed=7), probe.inputs(3, 9)),
        ]
    if patient.interface.batched:
        pairs.append(("an input with fewer examples", probe.inputs(1, 5, seed=7), probe.inputs(3, 5)))
    norms = any(isinstance(x, nn.modules.batchnorm._BatchNorm) for x in probe.module.modules())
    pairs.append(("a call in train mode", *(probe.inputs(3, 5, seed=s) for s in (7, 0))))
    for what, first, second in pairs:
        training = "train" in what
        if training and norms:  # batch norm counts
            continue
        alone = _anew(patient).attempt(second)
        if isinstance(alone, Exception):
            continue
        twice = _anew(patient)
        before = _called(twice, first, training)
        if isinstance(before, Exception):
            continue
        after = twice.attempt(second)
        if isinstance(after, Exception):
            said = f"after {what}, a call that runs alone raises {sentence(after)}"
            numbers = {}
        elif (change := gap(alone, after)) > ROUNDING:
            said = f"after {what}, the same call gives another output than alone: up to {change:.2g} of its size"
            numbers = {"change": change}
        else:
            continue
        resets = _resets(probe.module)
        yield Finding(
            "state-kept",
            "risk" if resets else "bug",
            said + (f"; {resets} may be meant to be called between them" if resets else ""),
            "keep no state between calls: compute tables for each call (or by length), and return caches to the caller",
            numbers=numbers,
        )


def _called(probe: Probe, inputs: Inputs, training: bool) -> Tensor | Exception:
    probe.module.train(training)
    out = probe.attempt(inputs)
    probe.module.eval()
    return out


def _resets(module: nn.Module) -> str:
    """A method that is there to forget."""
    for part in module.modules():
        for name in dir(type(part)):
            if _RESETS.search(name) and name not in dir(nn.Module) and "parameters" not in name:
                return f"{name}()"
    return ""


def _switched_off(patient: Patient) -> Iterator[Finding]:
    """Whether one call in eval mode ends the dropout of train mode."""
    fresh, used = _anew(patient), _anew(patient)
    inputs = fresh.inputs()
    used.attempt(inputs)
    random = []
    for probe in (fresh, used):
        probe.module.train()
        outs = [probe.attempt(inputs, seed=seed) for seed in (0, 1)]
        if any(isinstance(x, Exception) for x in outs):
            return
        random.append(gap(*outs) > 0)  # type: ignore[arg-type]
    if random == [True, False]:
        yield Finding(
            "train-eval-differ",
            "bug",
            "in train mode the output is random, as dropout makes it; after one call in eval mode it no longer is: "
            "that call changed the module for good",
            "choose the probability in each call (p if self.training else 0), and leave the attribute as it is",
        )
