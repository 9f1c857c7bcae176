"""Whether a gradient reaches every parameter.

It is tested without masks, with them, in train mode with dropout disabled, and with every flag. A parameter whose
gradient is 0 in all of these is changed, to see whether the output depends on it anyway: then its gradient is cut off.
A difference in rounding only is not reported (the bias of the keys shifts all scores of a row by the same amount), nor
is what a gate of 0 keeps from the output.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from headwise.doctor.calling.interface import Inputs
from headwise.doctor.finding import Finding, Where
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.listen import Dice
from headwise.doctor.probing.masking import hiding
from headwise.doctor.probing.probe import REACHED, Probe, gap, quiet, weighting

FINDINGS = ("unused-parameter", "gradient-blocked")


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    inputs = probe.inputs()
    before = probe.answers(inputs)
    wanted: dict[str, Tensor] = {name: x for name, x in probe.module.named_parameters() if x.requires_grad}
    if not wanted:
        raise NotApplicable("it has no parameters that require a gradient")
    called: set[str] = set()
    hooks = [
        part.register_forward_hook(lambda *_, name=name: called.add(name))
        for name, part in probe.module.named_modules()
    ]
    waiting = set(wanted)
    ran = 0
    for training, options in _calls(probe, inputs):
        if not waiting:
            break
        reached = _reached(probe, inputs, wanted, training, options)
        if reached is not None:
            ran += 1
            waiting -= reached
    for hook in hooks:
        hook.remove()
    if waiting and ran:
        waiting -= _reached_past_gates(patient, inputs, wanted)
    if not ran:
        yield Finding(
            "gradient-blocked",
            "bug",
            f"autograd finds no parameter that the output depends on: none of {len(wanted)} gets a gradient",
            "remove torch.no_grad, detach() and .data from forward",
            numbers={"parameters": len(wanted), "blocked": len(wanted)},
        )
        return
    blocked: dict[str, float] = {}
    unused: dict[str, list[str]] = {}
    for name in (name for name in wanted if name in waiting):
        change = _matters(patient, name, inputs, before)
        if change > REACHED * 1e3:
            blocked[name] = change
        elif change == 0:
            unused.setdefault(name.rpartition(".")[0] or name, []).append(name)
    if blocked:
        yield _blocked(probe, blocked, len(wanted))
    read = _read(probe, inputs) if unused else set()
    for names in unused.values():
        yield _unused(probe, names, wanted, called, read)


def _calls(probe: Probe, inputs: Inputs) -> Iterator[tuple[bool, dict[str, Any]]]:
    yield False, {}
    for mask in hiding(inputs, 1):
        yield False, mask
    yield True, {}
    for flag, value in probe.interface.flags.items():
        yield False, {"given": {flag: not value}}


def _reached(
    probe: Probe, inputs: Inputs, wanted: dict[str, Tensor], training: bool, options: dict[str, Any]
) -> set[str] | None:
    """The parameters with a nonzero gradient; None if it does not run this way, or gives no gradient at all."""
    probe.module.train(training)
    try:
        with quiet(), Dice(still=True), torch.enable_grad():
            result = probe.interface.run(inputs, grad=True, **options)
        outs = [x for x in (result.output, *_floats(result.raw)) if x.requires_grad]
        if not outs:
            return None
        weights = [weighting(x) for x in outs]
        found = torch.autograd.grad(outs, list(wanted.values()), weights, allow_unused=True)
    except Exception:
        return None
    finally:
        probe.module.eval()
    return {name for name, g in zip(wanted, found, strict=True) if g is not None and bool((g != 0).any())}


def _floats(raw: Any) -> Iterator[Tensor]:
    """All tensors of numbers that forward returned."""
    if isinstance(raw, Tensor):
        yield from (raw,) if raw.is_floating_point() and raw.numel() else ()
    elif isinstance(raw, (tuple, list, dict)):
        for each in raw.values() if isinstance(raw, dict) else raw:
            yield from _floats(each)


def _reached_past_gates(patient: Patient, inputs: Inputs, wanted: dict[str, Tensor]) -> set[str]:
    """The parameters with a gradient where no parameter is 0 (ReZero, projections that begin with 0)."""
    other = Probe(patient)
    draw = torch.Generator().manual_seed(12)
    with torch.no_grad():
        for x in other.module.parameters():
            x.add_(0.1 * torch.randn(x.shape, generator=draw).to(x.dtype))
    there = dict(other.module.named_parameters())
    return _reached(other, inputs, {name: there[name] for name in wanted}, False, {}) or set()


def _read(probe: Probe, inputs: Inputs) -> set[str]:
    """The parameters that a call takes from their modules."""
    names = {id(x): name for name, x in probe.module.named_parameters()}
    found: set[str] = set()
    before = nn.Module.__getattr__

    def read(module: nn.Module, name: str) -> Any:
        value = before(module, name)
        found.add(names.get(id(value), ""))
        return value

    with mock.patch.object(nn.Module, "__getattr__", read):
        probe.attempt(inputs)
    return found


def _matters(patient: Patient, name: str, inputs: Inputs, before: Tensor) -> float:
    """How far the output changes when the parameter holds other numbers."""
    other = Probe(patient)
    x = dict(other.module.named_parameters())[name]
    draw = torch.Generator().manual_seed(11)
    with torch.no_grad():
        x.add_(torch.randn(x.shape, generator=draw).to(x.dtype) * max(0.5, float(x.abs().amax()) if x.numel() else 0.5))
    out = other.attempt(inputs)
    return gap(before, out) if isinstance(out, Tensor) else torch.inf


def _blocked(probe: Probe, changes: dict[str, float], of: int) -> Finding:
    names, largest = list(changes), max(changes, key=lambda name: changes[name])
    return Finding(
        "gradient-blocked",
        "bug",
        f"{_listed(names)} get{'s' if len(names) == 1 else ''} no gradient, although other numbers in {largest} "
        f"change the output by {changes[largest]:.2g} of its size",
        "remove the detach(), .data, torch.no_grad or rounding between parameter and output",
        where=_origin(probe.module, names[0]),
        numbers={"change": changes[largest], "blocked": len(names), "parameters": of},
    )


def _unused(probe: Probe, names: list[str], wanted: dict[str, Tensor], called: set[str], read: set[str]) -> Finding:
    """The finding about parameters of one submodule that never get a gradient."""
    owner, attribute = _owner(probe.module, names[0])
    holder = names[0].rpartition(".")[0]
    ran = holder in called and type(probe.module.get_submodule(holder)).__module__.startswith("torch.")
    is_read = bool(read & set(names))
    optional = not ran and not is_read and _mentioned(owner, attribute)
    listed = _listed([f"{name} {list(wanted[name].shape)}" for name in names])
    never = f"{listed} never get{'s' if len(names) == 1 else ''} a gradient"
    if ran:
        evidence = f"{never}: {holder} is computed, but its result is not used"
    elif is_read:
        evidence = f"{never}: forward reads {'it' if len(names) == 1 else 'them'}, and other numbers change nothing"
    elif optional:
        evidence = f"{never} in any way of calling that was tried; some other option may use it"
    else:
        evidence = f"{never}: forward does not use {'it' if len(names) == 1 else 'them'}"
    matrix = any(wanted[name].ndim >= 2 and min(wanted[name].shape[-2:]) > 1 for name in names)
    return Finding(
        "unused-parameter",
        "bug" if is_read or (matrix and not optional) else "risk",
        evidence,
        "use it where it belongs (is another one used in its place?), or remove it",
        where=_origin(probe.module, names[0]),
        numbers={"weights": sum(wanted[name].numel() for name in names)},
    )


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


# --- Where a parameter is created and used ---------------------------------------------------------------------------


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The innermost submodule, not one of torch's own, that has the parameter, and the name of its attribute."""
    path = name.split(".")
    owner, attribute = module, path[0]
    part: nn.Module = module
    for i, step in enumerate(path[:-1]):
        part = part.get_submodule(step)
        if not type(part).__module__.startswith("torch."):
            owner, attribute = part, path[i + 1]
    return owner, attribute


def _functions(owner: nn.Module) -> Iterator[tuple[str, int, ast.FunctionDef]]:
    """File, first line and syntax tree of every method of its class and base classes."""
    for kind in type(owner).__mro__:
        if kind in (nn.Module, object):
            continue
        try:
            lines, first = inspect.getsourcelines(kind)
            tree = ast.parse(textwrap.dedent("".join(lines)))
            file = inspect.getsourcefile(kind) or ""
        except (OSError, TypeError, SyntaxError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                yield file, first, node


def _mentioned(owner: nn.Module, attribute: str) -> bool:
    """Whether a method other than initialisation uses it; True if the source cannot be read."""
    found = False
    replaced: set[str] = set()
    for _, _, function in _functions(owner):
        found = True
        if function.name in replaced or "init" in function.name or "reset" in function.name:
            continue
        nodes = list(ast.walk(function))
        if any(isinstance(node, ast.Attribute) and node.attr == attribute for node in nodes):
            return True
        if not any(isinstance(node, ast.Name) and node.id == "super" for node in nodes):
            replaced.add(function.name)  # a method of a base class that is overridden does not run
    return not found


def _origin(module: nn.Module, name: str) -> Where | None:
    """The line of the constructor that creates it."""
    owner, attribute = _owner(module, name)
    for file, first, function in _functions(owner):
        for node in ast.walk(function):
            if not isinstance(node, (ast.Assign, ast.AnnAssign)):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            parts = [part for target in targets for part in ast.walk(target)]
            if any(isinstance(part, ast.Attribute) and part.attr == attribute for part in parts):
                return Where.at(file, first + node.lineno - 1)
    return None
