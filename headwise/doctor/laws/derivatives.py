"""The law that gradients match the output: a small step changes it by as much as the gradient says.

An input that changes the output must get a gradient. Then, in float64, the gradient along random directions of the
inputs and of the parameters is compared with the change of the output along them: this shows a detach() in between.
"""

from __future__ import annotations

import dataclasses
import math
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
from headwise.doctor.probing.probe import Probe, gap, gradients, moved, quiet, weighting
from headwise.doctor.probing.reached import behind
from headwise.language import Sentence

FINDINGS = ("gradient-blocked", "gradient-wrong")

_STEPS = (1e-3, 1e-4)
_WRONG = 0.02  # of the gradient's size; smooth functions stay below 1e-4, ReLU kinks below this
_ESTIMATE = ". Part of the gradient has no effect on the output: a straight-through estimate may be intended"
_NOTHING = 1e-9  # a gradient of this size is rounding


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    if any(PAGES.search(x) for x in probe.interface.roles):
        raise NotApplicable("it decodes from a cache of pages")
    inputs = probe.inputs()
    before = probe.answers(inputs)
    tracked = inputs.each(lambda x: x.clone().requires_grad_())
    with quiet(), torch.enable_grad():
        result = probe.interface.run(tracked.each(Tensor.clone), grad=True)
    if not result.output.requires_grad:  # laws/gradients.py says so
        raise NotApplicable("autograd finds no path from the output to any input")
    found = gradients(result.output, tracked.tensors().values(), keep=True)
    right = True
    for (name, x), gradient in zip(tracked.tensors().items(), found, strict=True):
        called = Sentence(name if probe.crosses else "input")
        if gradient is not None and not gradient.isfinite().all():
            right = False
            yield Finding(
                "gradient-wrong",
                "bug",
                Sentence("the gradient of the {called} is NaN or infinite for ordinary inputs").format(called=called),
                "look for a square root, a logarithm or a division at 0, and for torch.where with a branch that is not "
                "finite",
            )
        elif gradient is None or not gradient.any():
            other = getattr(moved(inputs, slice(None), queries=True, seed=23), name)
            change = gap(before, probe.output(dataclasses.replace(inputs, **{name: other})))
            if change > 1e-3:
                if _reached_by_the_first(result, x):
                    raise NotApplicable(
                        "what it returns first has gradients; a part beside it is predicted without them"
                    )
                right = False
                yield Finding(
                    "gradient-blocked",
                    "bug",
                    Sentence(
                        "the {called} gets no gradient, although a change of it changes the output by {change:.2g} of "
                        "its size"
                    ).format(called=called, change=change),
                    "remove the detach(), .data, torch.no_grad or NumPy between input and output",
                )
    if right:
        yield from _along(patient, probe, inputs)


def _reached_by_the_first(result: Result, given: Tensor) -> bool:
    """Whether an input gets a gradient from the first tensor that is returned, where another one is examined."""
    first = next((x for _, x in tensors_in(result.raw)), result.output)
    if not first.requires_grad or result.output.data_ptr() == first.data_ptr():
        return False
    found = gradients(first, [given])[0]
    return found is not None and bool((found != 0).any())


def _along(patient: Patient, probe: Probe, inputs: Inputs) -> Iterator[Finding]:
    """Directional derivatives in float64."""
    probe.module.double()
    inputs = inputs.each(lambda x: x.double().clone())
    parameters = [x for x in probe.module.parameters() if x.requires_grad and x.is_floating_point()]
    try:
        out, found = _gradients(probe, inputs, parameters)
    except Exception as problem:
        raise NotChecked("it does not run in float64, which is needed to tell derivatives from rounding") from problem
    names, tensors = list(inputs.tensors()), [*inputs.tensors().values(), *parameters]
    groups = {
        Sentence("the {name}").format(name=name) if probe.crosses else "the input": [i] for i, name in enumerate(names)
    }
    groups["the parameters"] = list(range(len(names), len(tensors)))
    for what, members in groups.items():
        slope = _slope(probe, inputs, [(tensors[i], found[i]) for i in members])
        if slope.fits or not math.isfinite(slope.measured):  # an output of -inf, as of what is masked, has no slope
            continue
        # The mean and the deviation of a series are detached on purpose, and a maximum that cancels.
        with _WithStatistics():
            _, attached = _gradients(probe, inputs, parameters)
        if _slope(probe, inputs, [(tensors[i], attached[i]) for i in members]).fits:
            continue
        each = (_slope(probe, inputs, [(x, g)]) for x, g in zip(tensors, found, strict=True) if x.ndim > 1)
        estimated = any(abs(x.measured) < 1e-6 * x.size < abs(x.said) for x in each)  # (a bias changes no softmax)
        severity: Severity = "risk" if estimated else "bug"
        # A torch.autograd.Function of its own: in a paper's code an estimate may be intended.
        if any(isinstance(node, torch.autograd.function.BackwardCFunction) for node in behind(out)):
            severity = patient.severity("gradient-wrong: a custom backward", severity)
        yield Finding(
            "gradient-wrong",
            severity,
            Sentence(
                "along a random direction of {what} the output changes by {measured:.4g} per step, in float64; "
                "its gradient gives {gradient:.4g}{more}"
            ).format(what=what, measured=slope.measured, gradient=slope.said, more=_ESTIMATE if estimated else ""),
            "look for a detach(), .data or torch.no_grad on part of the path, or a custom backward",
        )
        return


def _gradients(probe: Probe, inputs: Inputs, parameters: list[Any]) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """The output, and its gradients for the inputs and the parameters."""
    leaves = inputs.each(lambda x: x.clone().requires_grad_())
    with quiet(), torch.enable_grad():
        out = probe.interface.run(leaves.each(Tensor.clone), grad=True).output
        return out, gradients(out, [*leaves.tensors().values(), *parameters])


class _WithStatistics(TorchFunctionMode):
    """Does not detach numbers [B, 1, M], one for all tokens: the mean or the deviation of a series. Nor a maximum,
    which keeps exponentials small (Performer) and is divided out again, up to a small number that is added.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.detach:
            x = args[0]
            of_all = x.ndim == 3 and x.shape[1] == 1 < x.shape[2]
            if of_all or (x.grad_fn is not None and x.grad_fn.name().startswith(("MaxBackward", "AmaxBackward"))):
                return x
        return func(*args, **(kwargs or {}))


@dataclasses.dataclass(frozen=True)
class Slope:
    """The derivative along a direction, as measured with two steps, and as the gradient says."""

    measured: float
    smaller: float  # as measured with a smaller step
    said: float
    length: float  # of the gradient

    @property
    def size(self) -> float:
        return max(self.length, abs(self.said), abs(self.measured))

    @property
    def fits(self) -> bool:
        """Whether they agree, or the two steps do not: then there is a kink."""
        off = abs(self.measured - self.said)
        return self.size < _NOTHING or off <= _WRONG * self.size or abs(self.measured - self.smaller) > 0.1 * off


def _slope(probe: Probe, inputs: Inputs, pairs: list[tuple[Tensor, Tensor | None]]) -> Slope:
    """Along a random direction of these tensors, of which each has its gradient beside it."""
    draw = torch.Generator().manual_seed(17)
    ways = [torch.randn(x.shape, generator=draw, dtype=torch.float64) for x, _ in pairs]
    measured = []
    for step in _STEPS:
        ends = []
        for sign in (1, -1):
            _shift(pairs, ways, sign * step)
            out = probe.output(inputs)
            ends.append(float((out * weighting(out)).sum()))
            _shift(pairs, ways, -sign * step)
        measured.append((ends[0] - ends[1]) / (2 * step))
    said = sum(float((g * way).sum()) for (_, g), way in zip(pairs, ways, strict=True) if g is not None)
    length = sum(float(g.square().sum()) for _, g in pairs if g is not None) ** 0.5
    return Slope(measured[0], measured[1], said, length)


def _shift(pairs: list[tuple[Tensor, Tensor | None]], ways: list[Tensor], step: float) -> None:
    with torch.no_grad():
        for (x, _), way in zip(pairs, ways, strict=True):
            x.add_(way, alpha=step)
