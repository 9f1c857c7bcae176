"""Whether gradients reach the inputs and match the output.

An input that changes the output must get a gradient. Then, in float64, the gradient along random directions of the
inputs and of the parameters is compared with the change of the output along them: this shows a detach() in between. The
mean and the deviation of each series over time, which forecasting models take off, are detached on purpose.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from headwise.doctor.calling.interface import Inputs
from headwise.doctor.calling.names import PAGES
from headwise.doctor.calling.way import Result, tensors_in
from headwise.doctor.finding import Finding, Severity
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.probe import Probe, gap, gradients, quiet, weighting

FINDINGS = ("gradient-blocked", "gradient-wrong")

_STEPS = (1e-3, 1e-4)
_WRONG = 0.02  # of the gradient's size; smooth functions stay below 1e-4, ReLU kinks below this


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    if any(PAGES.search(x) for x in probe.interface.roles):
        raise NotApplicable("it decodes from a cache of pages")
    inputs = probe.inputs()
    before = probe.answers(inputs)
    names = list(inputs.tensors())
    tracked = inputs.each(lambda x: x.clone().requires_grad_())
    with quiet(), torch.enable_grad():
        result = probe.interface.run(tracked.each(Tensor.clone), grad=True)
    out = result.output
    if not out.requires_grad and patient.serves:
        raise NotApplicable("its forward is declared without gradients, for decoding")
    if not out.requires_grad:
        yield _blocked("autograd finds no path from the output to any input or parameter: it requires no gradient", {})
        return
    found = gradients(out, tracked.tensors().values(), keep=True)
    blocked = False
    for name, gradient in zip(names, found, strict=True):
        if gradient is not None and not gradient.isfinite().all():
            blocked = True
            yield Finding(
                "gradient-wrong",
                "bug",
                f"the gradient of the {name if probe.crosses else 'input'} is NaN or infinite for ordinary inputs",
                "look for a square root, a logarithm or a division at 0, and for torch.where with a branch that is not "
                "finite",
                numbers={"not finite": int((~gradient.isfinite()).sum())},
            )
        if gradient is None or not (gradient != 0).any():
            change = gap(before, probe.output(_other(inputs, name)))
            if change > 1e-3 and _reached_by_the_first(result, tracked.tensors()[name]):
                raise NotApplicable("what it returns first has gradients; a part beside it is predicted without them")
            if change > 1e-3:
                blocked = True
                yield _blocked(
                    f"the {name if probe.crosses else 'input'} gets no gradient, although a change of it changes the "
                    f"output by {change:.2g} of its size",
                    {"change": change},
                )
    if not blocked:
        yield from _along(patient, probe, inputs, names)


def _reached_by_the_first(result: Result, given: Tensor) -> bool:
    """Whether an input gets a gradient from the first tensor that is returned, where another one is examined."""
    first = next((x for _, x in tensors_in(result.raw)), result.output)
    if not first.requires_grad or result.output.data_ptr() == first.data_ptr():
        return False
    found = gradients(first, [given])[0]
    return found is not None and bool((found != 0).any())


def _blocked(evidence: str, numbers: dict[str, float]) -> Finding:
    return Finding(
        "gradient-blocked",
        "bug",
        evidence,
        "remove the detach(), .data, torch.no_grad or NumPy between input and output",
        numbers=numbers,
    )


def _along(patient: Patient, probe: Probe, inputs: Inputs, names: list[str]) -> Iterator[Finding]:
    """Directional derivatives in float64."""
    probe.module.double()
    inputs = inputs.each(lambda x: x.double().clone())
    parameters = [x for x in probe.module.parameters() if x.requires_grad and x.is_floating_point()]
    try:
        leaves = inputs.each(lambda x: x.clone().requires_grad_())
        with quiet(), torch.enable_grad():
            out = probe.interface.run(leaves.each(Tensor.clone), grad=True).output
            found = gradients(out, [*leaves.tensors().values(), *parameters])
    except Exception as problem:
        raise NotChecked("it does not run in float64, which is needed to tell derivatives from rounding") from problem
    weight, tensors = weighting(out), [*inputs.tensors().values(), *parameters]
    groups = {f"the {name}" if probe.crosses else "the input": [i] for i, name in enumerate(names)}
    if parameters:
        groups["the parameters"] = list(range(len(names), len(tensors)))
    for what, members in groups.items():
        measured, said, size, steady = _derivatives(probe, inputs, weight, [(tensors[i], found[i]) for i in members])
        if not size or not steady or abs(measured - said) <= _WRONG * size:
            continue
        estimated = any(
            abs(alone) < 1e-6 * length < abs(gradient)
            for alone, gradient, length, _ in (
                _derivatives(probe, inputs, weight, [(tensors[i], found[i])])
                for i in range(len(tensors))
                if tensors[i].ndim > 1  # a bias of the keys never changes the softmax
            )
        )
        surrogate = (
            ". Part of the gradient has no effect on the output: a straight-through estimate may be intended"
            if estimated
            else ""
        )
        severity: Severity = "risk" if estimated else "bug"
        if _own_backward(out):
            severity = patient.severity("gradient-wrong: a custom backward", severity)
        if _only_by_statistics(probe, inputs, weight, [tensors[i] for i in members], measured):
            continue
        yield Finding(
            "gradient-wrong",
            severity,
            f"along a random direction of {what} the output changes by {measured:.4g} per step, in float64; its "
            f"gradient gives {said:.4g}{surrogate}",
            "look for a detach(), .data or torch.no_grad on part of the path, or a custom backward",
            numbers={"measured": measured, "gradient": said},
        )
        return


class _WithStatistics(TorchFunctionMode):
    """Does not detach numbers [B, 1, M], one for all tokens: the mean or the deviation of a series. Nor a maximum,
    which keeps exponentials small (Performer) and is divided out again, up to a small number that is added.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.detach:
            x = args[0]
            of_all = x.ndim == 3 and x.shape[1] == 1 < x.shape[2]
            if of_all or (x.grad_fn is not None and re.match(r"A?[Mm]axBackward", x.grad_fn.name())):
                return x
        return func(*args, **(kwargs or {}))


def _only_by_statistics(probe: Probe, inputs: Inputs, weight: Tensor, tensors: list[Tensor], measured: float) -> bool:
    """Whether the gradient is right once statistics and maxima are not detached."""
    wanted = {id(x) for x in tensors}
    leaves = inputs.each(lambda x: x.clone().requires_grad_())
    pairs = list(zip(inputs.tensors().values(), leaves.tensors().values(), strict=True))
    with quiet(), torch.enable_grad(), _WithStatistics():
        out = probe.interface.run(leaves.each(Tensor.clone), grad=True).output
        found = gradients(out, [y for x, y in pairs if id(x) in wanted] or tensors)
    _, said, size, _ = _derivatives(probe, inputs, weight, list(zip(tensors, found, strict=True)))
    return abs(measured - said) <= _WRONG * size


def _own_backward(out: Tensor) -> bool:
    """Whether a part of the graph is a torch.autograd.Function: in a paper's code an estimate may be intended."""
    todo, seen = [out.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return True
        todo += [before for before, _ in node.next_functions]
    return False


def _derivatives(
    probe: Probe, inputs: Inputs, weight: Tensor, pairs: list[tuple[Tensor, Tensor | None]]
) -> tuple[float, float, float, bool]:
    """Along a random direction: the measured derivative; the gradient's; their size; whether a smaller step agrees."""
    draw = torch.Generator().manual_seed(17)
    ways = [torch.randn(x.shape, generator=draw, dtype=torch.float64) for x, _ in pairs]
    said = sum(float((g * way).sum()) for (_, g), way in zip(pairs, ways, strict=True) if g is not None)
    length = sum(float(g.square().sum()) for _, g in pairs if g is not None) ** 0.5
    tensors = [x for x, _ in pairs]
    measured = []
    for step in _STEPS:
        ends = []
        for sign in (1, -1):
            _shift(tensors, ways, sign * step)
            ends.append(float((probe.output(inputs) * weight).sum()))
            _shift(tensors, ways, -sign * step)
        measured.append((ends[0] - ends[1]) / (2 * step))
    off = abs(measured[0] - said)
    return measured[0], said, max(length, abs(said), abs(measured[0])), abs(measured[0] - measured[1]) <= 0.1 * off


def _other(inputs: Inputs, name: str) -> Inputs:
    x = getattr(inputs, name)
    other = torch.randn(x.shape, generator=torch.Generator().manual_seed(23)).to(x) * 2
    return dataclasses.replace(inputs, **{name: other})


def _shift(tensors: list[Tensor], ways: list[Tensor], step: float) -> None:
    with torch.no_grad():
        for x, way in zip(tensors, ways, strict=True):
            x.add_(way, alpha=step)
