"""Every tensor that a forward makes, in order, and which of them are the stages of an attention."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headwise.doctor.finding import Where
from headwise.doctor.lines import running_line
from headwise.doctor.probing.listen import Dispatching
from headwise.doctor.reading.trace import without_fused

STAGES = ("queries", "keys", "values", "scores", "weights", "context", "output")
_SOFTMAX = {"_softmax", "_safe_softmax", "softmax"}
_EXPONENTIAL = {"exp", "exp2", "pow", "_log_softmax"}
_PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "addbmm"}


@dataclasses.dataclass
class Step:
    """The result of one operation, or of several that do the same for one head each."""

    number: int
    name: str
    parents: tuple[int, ...]
    value: Tensor
    where: Where | None
    live: bool  # depends on the inputs
    learned: bool  # depends on parameters
    dim: int | None = None  # of a softmax


def record(module: nn.Module, inputs: Sequence[Tensor], call: Callable[[], Tensor]) -> Recording:
    """Run `call`, which computes `module`'s output for `inputs`, and record every tensor."""
    mode = Recording(module, inputs)
    with torch.no_grad(), without_fused(), mode:
        mode.output = call()
    return mode


class Recording(Dispatching):
    """All steps of one forward."""

    def __init__(self, module: nn.Module, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.output: Tensor = torch.empty(0)
        self._of: dict[int, int] = {}
        self._alive: list[Tensor] = []
        for x in inputs:
            self._add("input", (), x, live=True)
        self._parameters = {
            self._add("parameter", (), x, learned=True).number: name for name, x in module.named_parameters()
        }

    def _add(
        self, name: str, parents: tuple[int, ...], x: Tensor, *, live: bool = False, learned: bool = False
    ) -> Step:
        live = live or any(self.steps[i].live for i in parents)
        learned = learned or any(self.steps[i].learned for i in parents)
        value = x.detach().clone() if live else x.detach()
        where = running_line() if parents else None
        step = Step(len(self.steps), name, parents, value, where, live, learned)
        self.steps.append(step)
        self._of[id(x)] = step.number
        self._alive.append(x)  # keeps it alive, so that no id is reused
        return step

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        given = [x for x in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        parents = tuple(dict.fromkeys(self._of[id(x)] for x in given if id(x) in self._of))
        if name.endswith("_like"):  # uses only the shape
            parents = ()
        for x in torch.utils._pytree.tree_leaves(out):
            if isinstance(x, Tensor) and parents:
                step = self._add(name.rstrip("_") if name.endswith("_") else name, parents, x)
                if name in _SOFTMAX:
                    step.dim = args[1] % max(x.ndim, 1)
        return out

    def ancestors(self, step: Step) -> list[Step]:
        """The steps that a step depends on, in the order of the computation, including itself."""
        is_mine = step.number < len(self.steps) and self.steps[step.number] is step
        queue = [step.number] if is_mine else list(step.parents)
        found = set(queue)
        while queue:
            for parent in self.steps[queue.pop()].parents:
                if parent not in found:
                    found.add(parent)
                    queue.append(parent)
        return [self.steps[i] for i in sorted(found)]

    # what the steps amount to

    def stage(self, name: str) -> list[Step]:
        """The steps where a stage can be found: several if it is passed on (with a bias, rotated, repeated)."""
        if name == "output":
            return [self.steps[self._of[id(self.output)]]] if id(self.output) in self._of else []
        found = [site.stage(name) for site in self.sites]
        if len(found) < 2 or len({len(steps) for steps in found}) > 1:
            return found[0] if found else []
        return [_joined(steps) for steps in zip(*found, strict=True)]

    @functools.cached_property
    def sites(self) -> list[_Site]:
        """The first attention, or all of one shape that run in parallel, one per head."""
        softmaxes = [step for step in self.steps if step.live and step.value.ndim >= 2 and self._is_softmax(step)]
        sites = [site for site in (_Site(self, step) for step in softmaxes) if site.product is not None]
        if not sites:
            return []
        alike = [site for site in sites if site.softmax.value.shape == sites[0].softmax.value.shape]
        numbers = {site.softmax.number for site in alike}
        apart = all(
            numbers.isdisjoint(x.number for x in self.ancestors(site.softmax) if x is not site.softmax)
            for site in alike
        )
        return alike if apart else alike[:1]

    def _is_softmax(self, step: Step) -> bool:
        """A softmax, or one computed from basic operations whose rows sum to one."""
        if step.name in _SOFTMAX:
            return True
        if step.name not in ("div", "mul", "exp"):
            return False
        if not any(x.name in _EXPONENTIAL and x.live for x in self.ancestors(step)):
            return False
        dims = [d for d in range(step.value.ndim) if step.value.shape[d] > 1 and _adds_to_one(step.value, d)]
        step.dim = dims[-1] if dims else None
        return bool(dims)

    def roles(self) -> dict[str, str]:
        """Whether each parameter belongs to queries, keys, values or output: name -> "q", "qkv", "o"; "" if none."""
        into: dict[str, set[int]] = {}
        for role, stage in (("q", "queries"), ("k", "keys"), ("v", "values"), ("o", "output")):
            steps = self.stage(stage)
            into[role] = {x.number for x in self.ancestors(steps[-1])} if steps else set()
        found = {}
        for number, name in self._parameters.items():
            roles = "".join(role for role in "qkv" if number in into[role])
            found[name] = roles or ("o" if number in into["o"] and self.stage("context") else "")
        return found


class _Site:
    """One softmax, and the products around it."""

    def __init__(self, recording: Recording, softmax: Step) -> None:
        self.all, self.softmax = recording, softmax

    def stage(self, name: str) -> list[Step]:
        if name == "weights":
            return [self.softmax]
        if name == "scores":
            return [self.scores] if self.scores is not None else []
        if name == "context":
            return [self.context[0]] if self.context is not None else []
        operand = self._operand(name)
        if operand is None:
            return []
        size = operand.value.numel()
        return [x for x in self.all.ancestors(operand) if x.live and x.learned and x.value.numel() <= size]

    def _operand(self, name: str) -> Step | None:
        if name == "values":
            return self.context[1] if self.context is not None else None
        if self.product is None:
            return None
        pair = [self.all.steps[i] for i in self.product.parents if self.all.steps[i].live]
        return pair[0 if name == "queries" else -1]

    @functools.cached_property
    def scores(self) -> Step | None:
        """The input of the softmax."""
        if self.softmax.name in _SOFTMAX:
            return self.all.steps[self.softmax.parents[0]]
        exponential = next(x for x in reversed(self.all.ancestors(self.softmax)) if x.name in _EXPONENTIAL)
        return next((self.all.steps[i] for i in exponential.parents if self.all.steps[i].live), None)

    @functools.cached_property
    def product(self) -> Step | None:
        """Queries times keys: a matrix product, or all pairs multiplied and then summed."""
        if self.scores is None:
            return None
        size = self.scores.value.numel()
        for step in reversed(self.all.ancestors(self.scores)):
            live = [self.all.steps[i] for i in step.parents if self.all.steps[i].live]
            of_pairs = step.name == "mul" and len(live) > 1 and step.value.numel() > size
            if of_pairs or (step.name in _PRODUCTS and live and (len(live) > 1 or len(step.parents) == 1)):
                return step
        return None

    @functools.cached_property
    def context(self) -> tuple[Step, Step] | None:
        """Weights times values, and the values."""
        after = {self.softmax.number}
        for step in self.all.steps[self.softmax.number + 1 :]:
            if after.isdisjoint(step.parents):
                continue
            others = [self.all.steps[i] for i in step.parents if i not in after and self.all.steps[i].live]
            if others and step.name in _PRODUCTS:
                return step, others[0]
            if others and step.name == "mul" and step.value.numel() > self.softmax.value.numel():
                added = (x for x in self.all.steps if step.number in x.parents and x.name == "sum")
                if (total := next(added, None)) is not None:
                    return total, others[0]
            after.add(step.number)
        return None


def _joined(steps: Sequence[Step]) -> Step:
    """The results of several heads, computed separately, as one step."""
    first = steps[0]
    value = torch.stack([x.value for x in steps]) if len({x.value.shape for x in steps}) == 1 else first.value
    dim = None if first.dim is None else first.dim + 1
    return dataclasses.replace(first, number=-1, parents=tuple(x.number for x in steps), value=value, dim=dim)


def _adds_to_one(x: Tensor, dim: int) -> bool:
    return bool((x >= 0).all()) and bool(((x.sum(dim) - 1).abs() < 1e-5).all())
