"""Whether a width that is not divisible by the number of heads is rejected.

`width // heads` rounds down, and then some features belong to no head. This checks the module's own numbers, and builds
it again with others if the constructor's arguments are known.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from headwise.doctor.calling import names
from headwise.doctor.calling.interface import Interface
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.probe import Probe, awake, gradients, quiet

FINDINGS = ("heads-not-dividing",)
_FIX = "in the constructor: if embed_dim % num_heads: raise ValueError(...)"


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    width, heads = probe.interface.width, probe.interface.heads
    if not heads or heads < 2:
        raise NotApplicable("its number of heads is unknown, or 1")
    if width % heads:
        yield from _judge(probe.interface, heads, "")
        return
    other = next((h for h in (heads + 1, heads - 1, 3, 5, 7, 11) if 1 < h <= width and width % h), None)
    if other is None:
        raise NotChecked(f"every small number of heads divides {width}")
    argument, make = _maker(patient)
    try:
        with quiet():
            module = make(other).eval()
            awake(module)
        found = list(_judge(probe.interface.on(module), other, f"{argument}={other} is accepted: "))
    except Exception:  # refused, at once or in the first call
        return
    yield from found


def _judge(interface: Interface, heads: int, said: str) -> Iterator[Finding]:
    """What happens to the remaining features."""
    width = interface.width
    share = width // heads
    left = width - share * heads
    numbers: dict[str, float] = {"width": width, "heads": heads, "left": left}
    lost = _lost(interface, left)
    if lost:
        yield _finding(
            "risk" if said else "bug",
            f"{said}the width {width} is not divisible by {heads} heads, and {lost[1]} features belong to no head: the "
            f"last {lost[1]} rows or columns of {lost[0]} get no gradient",
            numbers,
        )
        return
    parameters = inspect.signature(type(interface.module).__init__).parameters
    stated = any(names.simple(name) in (*names.HEAD_DIMS, "inner_dim", "attn_dim") for name in parameters)
    inner = [name for name, x in interface.module.named_parameters() if x.ndim == 2 and share * heads in x.shape]
    if inner and not stated and not _square(interface.module, width):
        yield _finding(
            "note" if said else "risk",
            f"{said}the width {width} is not divisible by {heads} heads: each takes {width} // {heads} = {share}, so "
            f"that {inner[0]} has {share * heads} features instead of {width}, without an error or warning",
            numbers,
        )


def _square(module: nn.Module, width: int) -> list[torch.Tensor]:
    """Matrices that keep the width: the heads then lose nothing."""
    return [x for x in module.parameters() if x.ndim == 2 and x.shape[-1] == width and x.shape[0] % width == 0]


def _finding(severity: Any, evidence: str, numbers: dict[str, float]) -> Finding:
    return Finding("heads-not-dividing", severity, evidence, _FIX, numbers=numbers)


def _lost(interface: Interface, left: int) -> tuple[str, int] | None:
    """A matrix whose last rows or columns never get a gradient, and how many."""
    inputs = interface.inputs()
    with quiet(), torch.enable_grad():
        out = interface.run(inputs, grad=True).output
        wanted = {name: x for name, x in interface.module.named_parameters() if x.requires_grad and x.ndim == 2}
        found = gradients(out, wanted.values())
    for name, g in zip(wanted, found, strict=True):
        if g is None or not (g != 0).any():
            continue
        for dim in (0, 1):
            dead = (g == 0).all(1 - dim)
            alive = int(dead.logical_not().nonzero().max()) + 1
            of_width = len(dead) % interface.width == 0  # in others ReLU may have left some without a gradient
            if of_width and len(dead) - alive == left:
                return name, len(dead) - alive
    return None


def _maker(patient: Patient) -> tuple[str, Any]:
    """The constructor's argument for the number of heads, and a function that builds the module with another number."""
    kind = type(patient.module)
    parameters = inspect.signature(kind.__init__).parameters
    argument = next((name for name in parameters if names.simple(name) in names.HEADS), None)
    if argument is None and not any(re.search(r"config|cfg|args$|params$", name) for name in parameters):
        raise NotApplicable("its number of heads is not chosen")
    if argument is None:
        raise NotChecked("its constructor has no argument for the number of heads")
    if patient.make is not None:
        return argument, lambda heads: patient.rebuild(**{argument: heads})
    known: dict[str, Any] = {}
    for name, parameter in list(parameters.items())[1:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        value = getattr(patient.module, name, parameter.default)
        if names.simple(name) in names.WIDTHS and value is parameter.empty:
            value = patient.interface.width
        if isinstance(value, (int, float, bool, str)) or value is None:
            known[name] = value
        elif parameter.default is parameter.empty and name != argument:
            raise NotChecked(f"the value of its constructor's argument {name} is not known")

    def make(heads: int) -> nn.Module:
        return kind(**{**known, argument: heads})

    try:
        with quiet():
            same = make(patient.interface.heads or 1)
    except Exception as problem:
        raise NotChecked("it could not be built again") from problem
    if [x.shape for x in same.parameters()] != [x.shape for x in patient.module.parameters()]:
        raise NotChecked("building it again gave other parameter shapes")
    return argument, make
