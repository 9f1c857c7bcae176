"""Whether saving and loading a module preserves its output.

Its state dict is loaded into a copy whose parameters, saved buffers, and tensors in plain attributes were filled with
other numbers. If the output then differs, something was not saved.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotChecked, Patient
from headwise.doctor.probing.probe import ROUNDING, Probe, gap, sentence
from headwise.registry import find_framework

FINDINGS = ("state-dict", "weights-unregistered")


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    inputs = probe.inputs()
    expected = probe.answers(inputs)
    saved = {name: x.clone() if isinstance(x, Tensor) else x for name, x in probe.module.state_dict().items()}
    unregistered = False
    for name, tensors, weights in _unregistered(probe.module):
        twin = Probe(patient)
        _same_paths(twin.module, name, tensors)
        change = gap(expected, twin.output(inputs))
        if change > ROUNDING:
            unregistered = True
            yield _missing(name, tensors, weights, change)

    other = Probe(patient)
    if find_framework(other.module) is not None:  # Keras gives the weights of a copy new names
        saved = dict(zip(other.module.state_dict(), saved.values(), strict=True))
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, x in itertools.chain(other.module.named_parameters(), other.module.named_buffers()):
            if name in saved:
                _fill(x, draw)
    try:
        other.module.load_state_dict(saved)
    except Exception as problem:
        yield Finding(
            "state-dict",
            "bug",
            f"its own state dict cannot be loaded: {sentence(problem)}",
            "register parameters and buffers under fixed names; hooks must accept what state_dict() writes",
        )
        return
    change = gap(expected, other.output(inputs))
    if change > ROUNDING and not unregistered:
        yield Finding(
            "state-dict",
            "bug",
            "after its state dict is loaded into a copy with other numbers, the output differs by up to "
            f"{change:.2g} of its size",
            "compute what depends on parameters in forward; do not store it next to them",
            numbers={"change": change},
        )
    for name, x in probe.module.named_buffers():
        if name not in saved and x.is_floating_point() and looks_random(x):
            twin = Probe(patient)
            with torch.no_grad():
                _fill(dict(twin.module.named_buffers())[name], draw)
            change = gap(expected, twin.output(inputs))
            if change > ROUNDING:
                yield Finding(
                    "state-dict",
                    "risk",
                    f"the buffer {name} {list(x.shape)} holds random numbers, affects the output (other numbers "
                    f"change it by {change:.2g} of its size) and is not saved: persistent=False",
                    "register it with persistent=True",
                    numbers={"change": change},
                )


def _missing(name: str, tensors: list[Tensor], weights: bool, change: float) -> Finding:
    count = sum(x.numel() for x in tensors)
    if weights:
        return Finding(
            "weights-unregistered",
            "bug",
            f"{name} holds {count} weights that forward uses (other numbers change the output by {change:.2g} of its "
            "size) but state_dict() and parameters() do not list: they are neither saved nor trained",
            "keep modules in nn.ModuleList or nn.ModuleDict, and tensors in nn.Parameter",
            numbers={"change": change, "weights": count},
        )
    return Finding(
        "weights-unregistered",
        "risk",
        f"{name} is a plain tensor of {count} random numbers that forward uses (other numbers change the output "
        f"by {change:.2g} of its size); state_dict() does not hold it",
        "make it an nn.Parameter if it is to be trained, else use register_buffer()",
        numbers={"change": change, "weights": count},
    )


def _fill(x: Tensor, draw: torch.Generator) -> None:
    """Fill with other numbers of the same kind, in place; a tensor that overlaps itself (expanded) is left as it is."""
    if any(step == 0 and n > 1 for step, n in zip(x.stride(), x.shape, strict=True)):
        return
    if x.is_floating_point():
        x.copy_(torch.randn(x.shape, generator=draw, dtype=torch.float64))
    elif x.dtype == torch.bool:
        x.logical_not_()


def _unregistered(module: nn.Module) -> Iterator[tuple[str, list[Tensor], bool]]:
    """Path, tensors, and whether they are weights, of every plain attribute that holds tensors or modules."""
    registered = {id(x) for x in [*module.parameters(), *module.buffers()]}
    parts = {id(x) for x in module.modules()}
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name in ("_parameters", "_buffers", "_modules") or name.startswith(
                ("_forward", "_backward", "_state", "_load")
            ):
                continue
            tensors, weights = [], False
            for held in _held(value, parts):
                found = list(held.parameters()) if isinstance(held, nn.Module) else [held]
                found = [x for x in found if id(x) not in registered and x.is_floating_point()]
                weights |= isinstance(held, nn.Module) or any(x.requires_grad for x in found)
                tensors += found
            if tensors and (weights or any(looks_random(x) for x in tensors)):
                yield f"{path}.{name}" if path else name, tensors, weights


def _held(value: Any, parts: set[int], depth: int = 0) -> Iterator[Tensor | nn.Module]:
    """Tensors and modules in lists and dicts, except modules that are registered elsewhere."""
    if isinstance(value, nn.Module):
        if id(value) not in parts:
            yield value
    elif isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)) and depth < 3:
        for x in value.values() if isinstance(value, dict) else value:
            yield from _held(x, parts, depth + 1)


def _same_paths(module: nn.Module, name: str, tensors: list[Tensor]) -> None:
    """Fill the tensors of the attribute of that name, in a copy of the module."""
    draw = torch.Generator().manual_seed(7)
    for path, held, _ in list(_unregistered(module)):
        if path == name:
            if [x.shape for x in held] != [x.shape for x in tensors]:
                raise NotChecked(f"a copy of {name} is not like the original")
            with torch.no_grad():
                for x in held:
                    _fill(x, draw)


def looks_random(x: Tensor) -> bool:
    """Whether neighbouring numbers are unrelated: then it is not a table of angles, a ramp or a mask."""
    if x.ndim < 2 or x.numel() < 64 or not bool(x.isfinite().all()):
        return False
    y = x.detach().double()
    y = y - y.mean()
    power = float(y.square().mean())
    if power == 0 or y.unique().numel() < y.numel() // 2:
        return False
    for dim in range(y.ndim):
        n = y.shape[dim]
        if n > 1:
            product = y.narrow(dim, 0, n - 1) * y.narrow(dim, 1, n - 1)
            if abs(float(product.mean())) > 5 * power / product.numel() ** 0.5:
                return False
    return True
