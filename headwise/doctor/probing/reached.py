"""Which parameters a gradient reaches, and which numbers of each.

It is tried without masks, with them, with codes in them, in train mode without dropout, and with every flag.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headwise.doctor.calling.way import tensors_in
from headwise.doctor.probing.listen import Dice
from headwise.doctor.probing.masking import hiding
from headwise.doctor.probing.probe import Probe, gap, gradients, quiet
from headwise.doctor.reading import marks

if TYPE_CHECKING:
    from headwise.doctor.calling.interface import Inputs
    from headwise.doctor.subject import Subject


_MANY = 24  # tokens


@dataclasses.dataclass
class Reached:
    """What `reached` found."""

    there: dict[str, Tensor] = dataclasses.field(default_factory=dict)  # where its gradient is not 0, in some call
    joined: set[str] = dataclasses.field(default_factory=set)  # autograd finds a path from the output, in some call
    calls: int = 0  # how many calls gave any gradient
    choosing: set[str] = dataclasses.field(default_factory=set)  # the parts that return indices, such as of best keys

    def add(self, found: dict[str, Tensor] | None) -> None:
        for name, where in (found or {}).items():
            self.joined.add(name)
            if bool(where.any()):
                self.there[name] = self.there[name] | where if name in self.there else where


def reached(subject: Subject) -> Reached:
    """Return the parameters with a gradient."""
    probe = Probe(subject)
    inputs, wanted, found = probe.inputs(), trainable(probe), Reached()

    def chosen(name: str, out: Any) -> None:
        tensors = marks.tensors_in(out)
        if name and tensors and not any(x.is_floating_point() for x in tensors):
            found.choosing.add(name)

    hooks = [
        part.register_forward_hook(lambda _, __, out, name=name: chosen(name, out))
        for name, part in probe.module.named_modules()
    ]
    for training, options in _calls(probe, inputs):
        if len(found.there) == len(wanted) and all(bool(x.all()) for x in found.there.values()):
            break
        here = gradients_of(probe, inputs, wanted, training=training, **options)
        found.calls += here is not None
        found.add(here)
    for hook in hooks:
        hook.remove()
    found.add(_in_example(subject, probe, wanted))
    if len(found.there) < len(wanted) and probe.interface.takes == "self" and probe.interface.length is None:
        found.add(gradients_of(probe, probe.interface.inputs(2, _MANY, _MANY), wanted))  # of few, one may be the best
    if found.calls and len(found.there) < len(wanted):  # behind units that are off, and gates that begin at 0
        stirred = Probe(subject)
        stir(stirred.module.parameters())
        found.add(gradients_of(stirred, inputs, trainable(stirred)))
    return found


def stir(parameters: Iterable[nn.Parameter], seed: int = 12, size: float = 0.1) -> None:
    """Add noise to parameters."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for x in parameters:
            x.add_(size * torch.randn(x.shape, generator=draw).to(x.dtype))


def trainable(probe: Probe) -> dict[str, Tensor]:
    """Return the parameters that require a gradient."""
    return {name: x for name, x in probe.module.named_parameters() if x.requires_grad}


def gradients_of(
    probe: Probe, inputs: Inputs, wanted: dict[str, Tensor], *, training: bool = False, **options: Any
) -> dict[str, Tensor] | None:
    """Return where the gradient of each parameter is not 0; None if the module does not run this way, or gives no
    gradient at all. A parameter without a path to the output is missing.
    """
    try:
        with torch.enable_grad():
            result = probe.run(inputs, train=training, grad=True, **options)
            return _where([result.output, *(x for _, x in tensors_in(result.raw))], wanted)
    except Exception:
        return None


def _in_example(subject: Subject, probe: Probe, wanted: dict[str, Tensor]) -> dict[str, Tensor] | None:
    """Where gradients are not 0 in the call that was given, whose arguments may hold what is not tried here."""
    try:
        with quiet(), Dice(still=True), torch.enable_grad():
            raw = subject.call_given(probe.module)
        return _where([x for _, x in tensors_in(raw)], wanted)
    except Exception:
        return None


def _where(outs: list[Tensor], wanted: dict[str, Tensor]) -> dict[str, Tensor] | None:
    outs = [x for x in outs if x.requires_grad and x.numel()]
    if not outs:
        return None
    found = gradients(outs, wanted.values())
    return {name: g != 0 for name, g in zip(wanted, found, strict=True) if g is not None}


def matters(subject: Subject, name: str, inputs: Inputs, before: Tensor) -> float:
    """Return how far the output changes when a parameter holds other numbers."""
    other = Probe(subject)
    x = dict(other.module.named_parameters())[name]
    stir([x], 11, max(0.5, float(x.detach().abs().amax()) if x.numel() else 0.5))
    out = other.attempt(inputs)
    return gap(before, out) if isinstance(out, Tensor) else torch.inf


def _calls(probe: Probe, inputs: Inputs) -> Iterator[tuple[bool, dict[str, Any]]]:
    yield False, {}
    yield True, {}
    yield from ((False, mask) for mask in hiding(inputs, 1))
    yield from ((False, {"given": {flag: not value}}) for flag, value in probe.interface.flags.items())
    for mask in probe.interface.masks:
        if mask.what == "keys":  # Longformer's 2, or any number above 0, is a token with weights of its own
            codes = torch.zeros(len(inputs.query), inputs.key_length)
            codes[:, ::2] = 1
            yield from ((False, {"given": {mask.parameter: x}}) for x in ((codes + 1).long(), codes))


def behind(out: Tensor, stop: Callable[[Any], bool] = lambda node: False) -> Iterator[Any]:
    """The nodes of autograd's graph that lead to an output, each once; none at which to stop, and none behind it."""
    todo, seen = [out.grad_fn], set[Any]()
    while todo:
        node = todo.pop()
        if node is not None and node not in seen and not stop(node):
            seen.add(node)
            yield node
            todo += [before for before, _ in node.next_functions]
