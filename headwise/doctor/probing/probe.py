"""Calls a copy of a module on inputs that differ in one thing, and measures how much its outputs then differ.

All behavioural checks use it. All calls use the same random numbers (the generators are seeded, and restored
afterwards), so that dropout that is wrongly active makes no difference between two calls.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headwise.doctor.finding import NotChecked
from headwise.doctor.probing.listen import Dice

if TYPE_CHECKING:
    from headwise.doctor.calling.interface import Inputs, Interface, Result
    from headwise.doctor.subject import Subject

# A row that a change did not reach is bit-identical: the same operations on the same numbers. A larger relative
# difference than this counts as reached.
REACHED = 1e-6
# Two computations of the same result in float32, by different kernels or in another order, differ by less than this.
ROUNDING = 1e-4


@contextmanager
def quiet(seed: int = 0) -> Iterator[None]:
    """Seeds the generators and hides warnings; both are restored afterwards."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.default_generator.manual_seed(seed)  # torch.manual_seed also asks every absent device
        yield


class Probe:
    """A copy of a subject's module that may be run and changed."""

    def __init__(self, subject: Subject) -> None:
        copy = subject.fresh()
        self.interface: Interface = copy.interface
        self.module: nn.Module = copy.module
        awake(self.module)

    @property
    def crosses(self) -> bool:
        """Whether queries and keys are separate arguments."""
        return self.interface.takes != "self"

    @property
    def rectangular(self) -> bool:
        """Whether it runs with more keys than queries."""
        return self.crosses and not self.interface.same_length

    def inputs(self, batch: int | None = None, length: int = 5, *, seed: int = 0) -> Inputs:
        """Inputs for a call; if keys are a separate argument, two more than queries, if the module accepts that."""
        length = self.interface.length or length
        return self.interface.inputs(batch, length, length + 2 if self.rectangular else length, seed=seed)

    def square(self, batch: int | None = None, length: int = 5) -> Inputs:
        """The same with as many keys as queries."""
        length = self.interface.length or length
        return self.interface.inputs(batch, length, length)

    def others(self, inputs: Inputs) -> dict[str, Any]:
        """What else forward is given in a call with these inputs, by name: positions, states, tables."""
        way = self.interface.way
        return {name: make(way.sizes(inputs)) for name, make in way.extras}

    def run(self, inputs: Inputs, *, seed: int = 0, train: bool = False, **options: Any) -> Result:
        """A call on copies of the inputs, so that changes in place do not matter. `train`: in train mode, where dropout
        keeps everything.
        """
        options = {name: _apart(x) for name, x in options.items()}
        with quiet(seed), _training(self.module) if train else nullcontext():
            return self.interface.run(inputs.each(Tensor.clone), **options)

    def output(self, inputs: Inputs, *, seed: int = 0, **options: Any) -> Tensor:
        """The output, [B, Q, M]."""
        return self.run(inputs, seed=seed, **options).output.detach()

    def attempt(self, inputs: Inputs, *, seed: int = 0, **options: Any) -> Tensor | Exception:
        """The output; or the exception, for checks that test whether it runs."""
        try:
            return self.output(inputs, seed=seed, **options)
        except Exception as problem:
            return problem

    def answers(self, inputs: Inputs, **options: Any) -> Tensor:
        """The output; NotChecked if the module does not run or its output does not depend on the input."""
        out = self.attempt(inputs, **options)
        if isinstance(out, Exception):
            raise NotChecked("it does not run this way: {sentence}", sentence=sentence(out))
        if not out.isfinite().any() or float(out.nan_to_num(0, 0, 0).abs().amax()) == 0:
            raise NotChecked("its output is 0 or NaN for every input")
        return out

    def rowwise(self, inputs: Inputs, **options: Any) -> Tensor:
        """The same; NotChecked if there is not one row for every query."""
        out = self.answers(inputs, **options)
        if out.shape[:2] != inputs.query.shape[:2]:
            raise NotChecked("its output does not have one row for every query")
        return out

    def influence(self, inputs: Inputs, *, example: int = 0, own: bool = False, **options: Any) -> Tensor:
        """[Q, K]: how far each query's output changes when one key token changes; in one example. `own`: [Q, Q], when a
        token of the queries' own sequence does, beside a memory.
        """
        before = self.rowwise(inputs, **options)
        length = inputs.query.shape[1] if own else inputs.key_length
        changed = (moved(inputs, example, token, queries=own) for token in range(length))
        if own:
            changed = (dataclasses.replace(inputs, query=x.query) for x in changed)
        return torch.stack([rows(before, self.output(x, **options))[example] for x in changed], dim=1)


@contextmanager
def _training(module: nn.Module) -> Iterator[None]:
    module.train()
    try:
        with Dice(still=True):
            yield
    finally:
        module.eval()


def _apart(x: Any) -> Any:
    if isinstance(x, dict):
        return {name: _apart(part) for name, part in x.items()}
    return x.clone() if isinstance(x, Tensor) else x


def awake(module: nn.Module) -> None:
    """Noise for parameters that are all 0: gates and projections initialised to 0 hide everything behind them."""
    draw = torch.Generator().manual_seed(29)
    with torch.no_grad():
        for x in module.parameters():
            if not isinstance(x, nn.UninitializedParameter) and x.is_floating_point() and not x.any():
                x.copy_(0.2 * torch.randn(x.shape, generator=draw))


def moved(
    inputs: Inputs, example: int | slice, token: int | slice = slice(None), *, queries: bool = False, seed: int = 99
) -> Inputs:
    """Other numbers in these tokens: of keys and values, and of the queries if `queries` or in self-attention."""
    draw = torch.Generator().manual_seed(seed)

    def other(x: Tensor) -> Tensor:
        x = x.clone()
        place = x[example, token]
        x[example, token] = 2 * torch.randn(place.shape, generator=draw, dtype=torch.float64).to(x)
        return x

    kept = inputs.key is not None and not queries
    changed = {name: other(x) for name, x in inputs.tensors().items() if not (kept and name == "query")}
    return dataclasses.replace(inputs, **changed)


def scaled(inputs: Inputs, factor: float) -> Inputs:
    """All inputs times a factor."""
    return inputs.each(lambda x: x * factor)


def size(x: Tensor) -> float:
    """The root mean square of the finite numbers; 1 if that is 0."""
    finite = x[x.isfinite()].double()
    return float(finite.square().mean().sqrt()) or 1.0 if finite.numel() else 1.0


def rows(before: Tensor, after: Tensor) -> Tensor:
    """[..., Q]: the largest difference in each row, relative to the output's size. NaN in both is no difference."""
    a, b = before.double(), after.double()
    same = (a == b) | (a.isnan() & b.isnan())
    difference = torch.where(same, torch.zeros_like(a), (a - b).abs().nan_to_num(torch.inf, torch.inf))
    return difference.amax(-1) / size(a)


def weighting(out: Tensor) -> Tensor:
    """Random weights for the sum of an output whose gradients are wanted, the same for every output of a shape."""
    return torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(out.dtype)


def gradients(
    out: Tensor | Sequence[Tensor], wanted: Iterable[Tensor], *, keep: bool = False
) -> tuple[Tensor | None, ...]:
    """Those of the weighted sum of an output, or of several; None for a tensor that it does not depend on."""
    # Of a number, not of outputs with weights: for these torch imports sympy, which takes a second.
    outs = [out] if isinstance(out, Tensor) else out
    whole = torch.stack([(x * weighting(x)).sum() for x in outs]).sum()
    return torch.autograd.grad(whole, list(wanted), allow_unused=True, retain_graph=keep or None)


def gap(before: Tensor, after: Tensor) -> float:
    """The largest difference, relative to the output's size; infinite if the shapes differ."""
    return float(rows(before, after).amax()) if before.shape == after.shape else torch.inf


def sentence(problem: BaseException) -> str:
    """An exception in one line."""
    text = next(iter(str(problem).strip().splitlines()), "")
    text = text[:160].rstrip(".")
    return f"{type(problem).__name__}: {text}" if text else type(problem).__name__
