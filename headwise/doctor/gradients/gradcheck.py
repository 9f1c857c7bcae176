"""Gradient check: autograd against central differences of the output.

    found = headwise.doctor.gradcheck(module)
    found.right, found.tensors

Elements are sampled, and each tensor is also changed once along a random direction of all its elements.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from headwise.doctor.calling.interface import Inputs, Interface
from headwise.doctor.calling.spec import Spec
from headwise.doctor.comparing.parting import size_of
from headwise.doctor.comparing.recording import record
from headwise.doctor.comparing.side import EXPECTED, copied, discovered
from headwise.doctor.gradients.checked import CheckedGradients, TensorGradient, Verdict
from headwise.doctor.targets.load import raised_at, said
from headwise.errors import ArgumentError, DoctorError
from headwise.language import Sentence
from headwise.tables import Printed

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

Progress = Callable[[int, int, str], None]  # done, total, which tensor

SAMPLED = 40
_FACTORS = (1.0, 0.1, 10.0)  # of the step: a kink within the usual step may be outside a smaller one


class Gradients(CheckedGradients, Printed):
    """The result of a gradient check of a module."""

    def __str__(self) -> str:
        from headwise.doctor.telling.report import plain

        return plain(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from headwise.doctor.gradients.gradient_report import gradient_report

        yield from gradient_report(self)


def gradcheck(
    module: nn.Module,
    *,
    spec: Spec | None = None,
    sampled: int | None = SAMPLED,
    seed: int = 0,
    progress: Progress | None = None,
) -> Gradients:
    """Compare the gradients of all inputs and parameters with central differences, on a copy in eval mode on the CPU.

    Args:
        module: it is not changed.
        spec: facts about how it is called, stated by hand.
        sampled: elements per tensor; None = all.
        seed: of the inputs and of the sample.
        progress: called with the number of elements done, the total, and the tensor's name.

    Raises:
        DoctorError: the module cannot be called, or gives other numbers each time.
    """
    if sampled is not None and sampled < 1:
        raise ArgumentError(f"gradcheck: sampled must be 1 or more, or None for all. Received: sampled={sampled}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _check(module, spec, sampled, seed, progress)


def _check(
    module: nn.Module, spec: Spec | None, sampled: int | None, seed: int, progress: Progress | None
) -> Gradients:
    run, notes = _prepare(module, spec, seed)
    subject = type(module).__name__
    try:
        gradients = run.gradients()
    except EXPECTED as error:
        problem = Sentence("backward raised {error}").format(error=f"{said(error)}{raised_at(error)}")
        return Gradients(subject, run.dtype_name, run.relative, (), tuple(notes), problem)
    generator = torch.Generator().manual_seed(seed)
    counts = {name: min(sampled or x.numel(), x.numel()) for name, x in run.tensors.items()}
    done, total = 0, sum(counts.values())
    found = []
    for name, x in run.tensors.items():
        chosen = torch.randperm(x.numel(), generator=generator)[: counts[name]].sort().values.tolist()
        direction = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x)
        judged = []
        for each in _judged(run, name, gradients[name], chosen, direction):
            judged.append(each)
            if progress is not None:
                progress(min(done + len(judged), done + counts[name]), total, name)
        done += counts[name]
        found.append(_summary(run, name, gradients[name], judged))
    return Gradients(subject, run.dtype_name, run.relative, tuple(found), tuple(notes))


# --- The function to differentiate -----------------------------------------------------------------------------------


class _Run:
    """The module as a scalar function of its inputs and parameters."""

    def __init__(self, interface: Interface, inputs: Inputs, dtype: torch.dtype, lowest: torch.dtype) -> None:
        self.interface, self.inputs = interface, inputs
        self.module = interface.module
        self.tensors: dict[str, Tensor] = {}
        shared: set[int] = set()
        for name, x in inputs.tensors().items():
            if id(x) not in shared and x.is_floating_point():
                shared.add(id(x))
                self.tensors[f"input {name}"] = x
        self.tensors.update((name, x) for name, x in self.module.named_parameters() if x.is_floating_point())
        self.dtype_name = str(dtype).removeprefix("torch.")
        self._buffers = {name: x.clone() for name, x in self.module.named_buffers()}
        output = self._output()
        generator = torch.Generator().manual_seed(1)
        self._weighting = torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output)
        scale = max(1.0, float((output.double() * self._weighting.double()).norm()))
        # Central differences have errors of rounding / step and of step²: they balance at the cube root.
        unit = torch.finfo(lowest).eps
        self.step = unit ** (1 / 3)
        self.unmoved = self.value()
        self.absolute = 30 * scale * unit ** (2 / 3)
        self.relative = 1e-4 if lowest == torch.float64 else 2e-2

    def value(self) -> float:
        """The output, multiplied by random weights and summed."""
        with torch.no_grad():
            return float((self._output().double() * self._weighting.double()).sum())

    def gradients(self) -> dict[str, Tensor | None]:
        """The gradients of autograd."""
        wanted = {name: x for name, x in self.tensors.items() if x.requires_grad or name.startswith("input ")}
        leaves = [x for name, x in wanted.items() if name.startswith("input ")]
        for x in leaves:
            x.requires_grad_(True)
        try:
            with torch.enable_grad():
                total = (self._output(grad=True) * self._weighting).sum()
                if not total.requires_grad:
                    return dict.fromkeys(self.tensors)
                found = torch.autograd.grad(total, list(wanted.values()), allow_unused=True)
        finally:
            for x in leaves:
                x.requires_grad_(False)
        known = dict(zip(wanted, found, strict=True))
        return {name: known.get(name) for name in self.tensors}

    def _output(self, *, grad: bool = False) -> Tensor:
        for name, x in self.module.named_buffers():
            if name in self._buffers and x.shape == self._buffers[name].shape:
                x.copy_(self._buffers[name])
        # Copies, for a module that changes its inputs in place; inputs that are one tensor stay one tensor.
        copies: dict[int, Tensor] = {}
        given = self.inputs.each(lambda x: copies.setdefault(id(x), x.clone()))
        with torch.random.fork_rng(devices=[]):  # dropout that is active even in eval mode is the same in every call
            return self.interface.run(given, grad=grad).output


def _prepare(module: nn.Module, spec: Spec | None, seed: int) -> tuple[_Run, list[str]]:
    """The module in float64 if possible, else in float32."""
    notes: list[str] = []
    interface = discovered(copied(module), spec)

    def cast(dtype: torch.dtype) -> tuple[Interface, Inputs]:
        twin = copy.deepcopy(interface.module)
        found = interface.on(twin.double() if dtype == torch.float64 else twin.float())
        return found, found.inputs(2, interface.length or 4, seed=seed, dtype=dtype)

    dtype = torch.float64
    double, inputs = cast(dtype)
    try:
        double.run(inputs)
    except EXPECTED as error:
        told = Sentence("it cannot run in float64: {why}; checked in float32, which shows only large errors")
        notes.append(told.format(why=f"{said(error)}{raised_at(error)}"))
        dtype = torch.float32
        double, inputs = cast(dtype)
    lowest = _lowest(double, inputs, dtype)
    if lowest != dtype:
        named = str(lowest).removeprefix("torch.")
        told = Sentence("a part of it is computed in {dtype}, so only errors larger than its rounding are visible")
        notes.append(told.format(dtype=named))
    run = _Run(double, inputs, dtype, lowest)
    first, second = run.unmoved, run.value()
    if first != second and abs(first - second) > run.absolute:
        raise DoctorError(
            f"{type(module).__name__} must give the same output for the same inputs, seed and buffers. Received: "
            f"outputs with sums {first:.6g} and {second:.6g}. Check that it keeps no cache between calls"
        )
    return run, notes


def _lowest(interface: Interface, inputs: Inputs, dtype: torch.dtype) -> torch.dtype:
    """The lowest precision of any intermediate result."""
    given = list(inputs.tensors().values())
    recording = record(interface.module, given, lambda: interface.run(inputs).output)
    kinds = {x.value.dtype for x in recording.steps if x.live and x.value.is_floating_point()}
    return max({dtype, *kinds}, key=lambda kind: torch.finfo(kind).eps)


# --- Numerical against autograd ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Judged:
    at: tuple[int, ...]
    autograd: float
    numerical: float
    verdict: Literal["right", "wrong", "kink"]


def _judged(run: _Run, name: str, gradient: Tensor | None, chosen: list[int], direction: Tensor) -> Iterator[_Judged]:
    """Each chosen element of a tensor, and then a random direction of the whole tensor."""
    x = run.tensors[name]
    flat = torch.zeros(x.numel(), dtype=torch.float64) if gradient is None else gradient.detach().double().flatten()
    for i in chosen:
        at = tuple(int(n) for n in torch.unravel_index(torch.tensor(i), x.shape)) if x.ndim else ()
        yield _judge(run, x, None, at, float(flat[i]))
    direction = direction / direction.norm()
    yield _judge(run, x, direction, (), float((flat * direction.double().flatten()).sum()))


def _judge(run: _Run, x: Tensor, direction: Tensor | None, at: tuple[int, ...], autograd: float) -> _Judged:
    """Judge one element, or a direction: right if one of the steps confirms it.

    The slopes on both sides converge as the step shrinks, unless there is a kink or a jump at this point.
    """
    slopes: list[float] = []
    jumps: list[float] = []
    for factor in _FACTORS:
        step = run.step * factor * max(1.0, size_of(x.detach()) * 0.1)
        before, after = (_moved(run, x, direction, at, by) for by in (-step, step))
        slope = (after - before) / (2 * step)
        room = run.absolute / min(factor, 1.0) + run.relative * max(abs(slope), abs(autograd))
        if abs(slope - autograd) <= room:
            return _Judged(at, autograd, slope, "right")
        slopes.append(slope)
        jumps.append(abs(after - 2 * run.unmoved + before) / step)
    _, small, large = jumps
    return _Judged(at, autograd, slopes[0], "kink" if small > 10 * run.absolute + 0.3 * large else "wrong")


def _moved(run: _Run, x: Tensor, direction: Tensor | None, at: tuple[int, ...], by: float) -> float:
    kept = x.detach().clone() if direction is not None else x.detach()[at].clone()
    with torch.no_grad():
        x[at].add_(by) if direction is None else x.add_(direction, alpha=by)
        try:
            return run.value()
        finally:
            x[at].copy_(kept)


def _summary(run: _Run, name: str, gradient: Tensor | None, judged: list[_Judged]) -> TensorGradient:
    x = run.tensors[name]
    settled = [each for each in judged if each.verdict != "kink"] or judged
    order: Mapping[str, int] = {"wrong": 1, "right": 0, "kink": 0}
    worst = max(settled, key=lambda each: (order[each.verdict], abs(each.autograd - each.numerical)))
    verdict: Verdict = "wrong" if worst.verdict == "wrong" else "right"
    if gradient is None:
        moves = any(abs(each.numerical) > run.absolute for each in judged)
        frozen = not x.requires_grad and not name.startswith("input ")
        verdict = "frozen" if frozen else "blocked" if moves else "unused"
    return TensorGradient(
        name,
        tuple(x.shape),
        len(judged) - 1,
        abs(worst.autograd - worst.numerical),
        worst.at,
        worst.autograd,
        worst.numerical,
        sum(each.verdict == "kink" for each in judged),
        verdict,
    )
