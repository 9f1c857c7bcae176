"""Records a run of a model, to find weights in it: attention calls, inputs and outputs of modules, sums of tensors."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from headwise.call import AttentionCall
from headwise.edits.context import edit
from headwise.edits.edit import Edit
from headwise.edits.where import Where
from headwise.experiments.running import Inputs, run
from headwise.experiments.sums import Sums
from headwise.records.names import Choice


@dataclasses.dataclass(frozen=True, eq=False)
class Event:
    """One call of a module, with its inputs and outputs."""

    name: str
    module: nn.Module
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """The parameters of the module itself, detached."""
        return {name: p.detach() for name, p in self.module._parameters.items() if p is not None}


@dataclasses.dataclass(frozen=True, eq=False)
class Computed:
    """The attention of one layer: its call, and the output [B, H, Q, E] of its heads."""

    site: str
    kind: Literal["self", "cross"]
    runs: int  # how often the layer ran in this pass
    call: AttentionCall  # the call of its first run
    out: Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Observed:
    """The record of one run: the attention of each layer, the calls of modules, and the sums of tensors."""

    model: nn.Module
    result: Any
    calls: Mapping[str, Computed]  # by the paths of the layers, in their order; the first call of each layer
    events: Sequence[Event]
    sums: Sums

    def around(self, site: str) -> Iterator[list[Event]]:
        """Yield the calls inside a layer's module, then in the modules around it, from the inside out, each call once.

        Stops at a module that also contains another layer's attention: weights found there could be of that layer.
        """
        done: set[int] = set()
        parts = site.split(".")
        for end in range(len(parts), -1, -1):
            path = ".".join(parts[:end])
            inside = [e for e in self.events if not path or e.name == path or e.name.startswith(f"{path}.")]
            found = [e for e in inside if id(e) not in done]
            others = any(each != site and (not path or each.startswith(f"{path}.")) for each in self.calls)
            if others and done:
                return  # here are the weights of another attention
            done.update(map(id, found))
            if found:
                yield found

    def makers(self, x: Tensor) -> list[Event]:
        """Return the calls of modules that returned this tensor, from the innermost to the outermost module."""
        return [e for e in self.events if any(y is x for y in e.outputs)]


def observe(model: nn.Module, inputs: Inputs, where: Choice = "*") -> Observed:
    """Run the model once, without gradients, and record the run. Tensors are not copied, but all are kept in memory."""
    events: list[Event] = []
    keep = _Keep(where)
    sums = Sums()
    names = {id(module): name for name, module in model.named_modules()}

    def hook(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        given, gave = [*tensors_in(args), *tensors_in(kwargs)], tensors_in(out)
        events.append(Event(names[id(module)], module, given, gave))

    with contextlib.ExitStack() as hooks:
        for module in model.modules():
            hooks.enter_context(module.register_forward_hook(hook, with_kwargs=True))
        with torch.no_grad(), edit(model, keep), sums:
            result = run(model, inputs)
    called = {event.name for event in events}  # the parameters of other modules are used by the modules around them
    events += [Event(name, m, (), ()) for name, m in model.named_modules() if name not in called and m._parameters]
    return Observed(model, result, keep.found, events, sums)


def tensors_in(value: Any) -> list[Tensor]:
    """Return a list of all tensors in nested tuples, lists and dicts."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [x for each in value.values() for x in tensors_in(each)]
    return [x for each in value for x in tensors_in(each)] if isinstance(value, (tuple, list)) else []


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class _Keep(Edit):
    """An edit that changes nothing, but collects the attention calls and the outputs of heads."""

    calls: dict[str, AttentionCall] = dataclasses.field(default_factory=dict)
    found: dict[str, Computed] = dataclasses.field(default_factory=dict)

    def call(self, call: AttentionCall, at: Where) -> AttentionCall:
        self.calls.setdefault(at.site, call)
        return call

    def output(self, out: Tensor, at: Where) -> Tensor:
        before = self.found.get(at.site) or Computed(at.site, at.kind, 0, self.calls[at.site], out)
        self.found[at.site] = dataclasses.replace(before, runs=before.runs + 1)
        return out
