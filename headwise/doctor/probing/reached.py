"""Which parameters a gradient reaches, and which numbers of each.

It is tried without masks, with them, with the codes of one, in train mode without dropout, and with every flag.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headwise.doctor.calling.claims import text_of
from headwise.doctor.calling.way import MAPS
from headwise.doctor.probing.listen import Dice
from headwise.doctor.probing.masking import hiding
from headwise.doctor.probing.probe import Probe, gap, gradients, quiet
from headwise.doctor.reading.marks import tensors_in

if TYPE_CHECKING:
    from headwise.doctor.calling.interface import Inputs
    from headwise.doctor.subject import Subject


_SIDE = 8  # of a map


@dataclasses.dataclass
class Reached:
    """What `reached` found."""

    there: dict[str, Tensor]  # parameter -> where its gradient is not 0, in some call
    in_training: set[str] | None  # the parameters with a gradient in train mode; None if it does not run there
    called: set[str]  # the parts that were called
    calls: int  # how many calls gave any gradient
    choosing: set[str]  # the parts that return indices alone, such as those of the best keys: these have no gradient


def reached(subject: Subject) -> Reached:
    """The parameters with a gradient."""
    probe = Probe(subject)
    inputs = probe.inputs()
    wanted = trainable(probe)
    found = Reached({}, None, set(), 0, set())

    def called(name: str, out: Any) -> None:
        found.called.add(name)
        tensors = tensors_in(out)
        if name and tensors and not any(x.is_floating_point() for x in tensors):
            found.choosing.add(name)

    hooks = [
        part.register_forward_hook(lambda _, __, out, name=name: called(name, out))
        for name, part in probe.module.named_modules()
    ]
    for training, options in _calls(probe, inputs):
        if (
            len(found.there) == len(wanted)
            and found.in_training is not None
            and all(bool(x.all()) for x in found.there.values())
        ):
            break
        here = gradients_of(probe, inputs, wanted, training=training, **options)
        if here is None:
            continue
        found.calls += 1
        found.in_training = set(here) if training else found.in_training
        for name, where in here.items():
            found.there[name] = found.there[name] | where if name in found.there else where
    if probe.interface.way.layout in MAPS and probe.interface.length is None:
        # In a map of one row, nothing attends along a column.
        here = gradients_of(probe, probe.interface.inputs(2, _SIDE * _SIDE), wanted) or {}
        for name, where in here.items():
            found.there[name] = found.there[name] | where if name in found.there else where
    for hook in hooks:
        hook.remove()
    for name, where in _in_example(subject, probe, wanted).items():
        found.there[name] = found.there[name] | where if name in found.there else where
    return found


def _in_example(subject: Subject, probe: Probe, wanted: dict[str, Tensor]) -> dict[str, Tensor]:
    """Where gradients are not 0 in the call that was given, whose arguments may hold what is not tried here."""
    try:
        with quiet(), Dice(still=True), torch.enable_grad():
            raw = subject.call_given(probe.module)
    except Exception:
        return {}
    return _where(list(_floats(raw)), wanted) or {}


def trainable(probe: Probe) -> dict[str, Tensor]:
    """The parameters that require a gradient."""
    return {name: x for name, x in probe.module.named_parameters() if x.requires_grad}


def gradients_of(
    probe: Probe, inputs: Inputs, wanted: dict[str, Tensor], *, training: bool = False, **options: Any
) -> dict[str, Tensor] | None:
    """Where the gradient of each parameter is not 0, without those where it is 0 everywhere; None if the module does
    not run this way, or gives no gradient at all.
    """
    probe.module.train(training)
    try:
        with quiet(), Dice(still=True), torch.enable_grad():
            result = probe.interface.run(inputs, grad=True, **options)
        return _where([result.output, *_floats(result.raw)], wanted)
    except Exception:
        return None
    finally:
        probe.module.eval()


def _where(outs: list[Tensor], wanted: dict[str, Tensor]) -> dict[str, Tensor] | None:
    outs = [x for x in outs if x.requires_grad]
    if not outs:
        return None
    found = gradients(outs, wanted.values())
    return {name: g != 0 for name, g in zip(wanted, found, strict=True) if g is not None and bool((g != 0).any())}


def matters(subject: Subject, name: str, inputs: Inputs, before: Tensor, there: Tensor | None = None) -> float:
    """How far the output changes when a parameter holds other numbers, everywhere or `there`."""
    other = Probe(subject)
    x = dict(other.module.named_parameters())[name]
    draw = torch.Generator().manual_seed(11)
    with torch.no_grad():
        noise = torch.randn(x.shape, generator=draw).to(x.dtype)
        noise = noise if there is None else noise * there
        x.add_(noise * max(0.5, float(x.abs().amax()) if x.numel() else 0.5))
    out = other.attempt(inputs)
    return gap(before, out) if isinstance(out, Tensor) else torch.inf


def _calls(probe: Probe, inputs: Inputs) -> Iterator[tuple[bool, dict[str, Any]]]:
    yield False, {}
    yield True, {}
    for mask in hiding(inputs, 1):
        yield False, mask
    for flag, value in probe.interface.flags.items():
        yield False, {"given": {flag: not value}}
    yield from ((False, {"given": given}) for given in _coded(probe, inputs))


def _coded(probe: Probe, inputs: Inputs) -> Iterator[dict[str, Tensor]]:
    """Masks of keys with the other numbers that the code compares them with, such as 2 for global attention, or any
    above 0.
    """
    for mask in probe.interface.masks:
        for code in set(re.findall(rf"\b{re.escape(mask.parameter)}\s*==\s*([2-9])\b", text_of(probe.module))):
            if mask.what == "keys":
                value = torch.ones(len(inputs.query), inputs.key_length, dtype=torch.int64)
                value[:, ::2] = int(code)
                yield {mask.parameter: value}
        if mask.what == "keys" and re.search(rf"\b{re.escape(mask.parameter)}\s*>\s*0\b", text_of(probe.module)):
            value = torch.zeros(len(inputs.query), inputs.key_length)
            value[:, ::2] = 1.0
            yield {mask.parameter: value}


def _floats(raw: Any) -> Iterator[Tensor]:
    """All tensors of numbers that forward returned."""
    if isinstance(raw, Tensor):
        yield from (raw,) if raw.is_floating_point() and raw.numel() else ()
    elif isinstance(raw, (tuple, list, dict)):
        for each in raw.values() if isinstance(raw, dict) else raw:
            yield from _floats(each)
