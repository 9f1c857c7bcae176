"""Whether a gradient reaches every parameter, in some way of calling the module.

A parameter whose gradient is 0 in all of them is changed, to see whether the output depends on it anyway: then its
gradient is cut off. A difference in rounding only is not reported (the bias of the keys shifts all scores of a row by
the same amount), nor is what a gate of 0 keeps from the output.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from headwise.doctor.calling.interface import Inputs
from headwise.doctor.finding import Finding, Severity
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.listen import Dice, LoneKeys
from headwise.doctor.probing.probe import REACHED, Probe, gap, gradients, moved, quiet, rows
from headwise.doctor.probing.reached import Reached, gradients_of, matters, trainable
from headwise.doctor.reading.creation import left_out, mentioned, origin, owner
from headwise.doctor.reading.marks import tensors_in

FINDINGS = ("unused-parameter", "gradient-blocked")

_MANY = 24  # tokens
_FEW = 4  # parameters that are named


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    inputs = probe.inputs()
    before = probe.answers(inputs)
    wanted = trainable(probe)
    if not wanted:
        raise NotApplicable("it has no parameters that require a gradient")
    if before.shape[1] == 1 < inputs.query.shape[1] and _reads_its_first(probe, inputs, before):
        raise NotChecked("its output is read at the first token, which sees itself alone")
    reached = patient.reached
    if not reached.calls:
        if patient.serves:
            raise NotApplicable("its forward is declared without gradients, for decoding")
        yield Finding(
            "gradient-blocked",
            "bug",
            f"autograd finds no parameter that the output depends on: none of {len(wanted)} gets a gradient",
            "remove torch.no_grad, detach() and .data from forward",
            numbers={"parameters": len(wanted), "blocked": len(wanted)},
        )
        return
    waiting = {x for x in wanted.keys() - reached.there.keys() if not _chooses(x, reached.choosing)}
    if waiting:
        waiting -= _reached_past_gates(patient, inputs)
    if waiting and probe.interface.length is None and probe.interface.takes == "self":
        more = probe.interface.inputs(2, _MANY, _MANY)  # of few tokens one is the best, and its weight is 1
        waiting -= set(gradients_of(probe, more, wanted) or ())
    if waiting:
        waiting -= _of_one_step(probe, inputs)
    if waiting:
        waiting -= _of_empty_parts(probe, inputs)
    if waiting:
        waiting -= _of_lone_keys(probe, inputs, {name: wanted[name] for name in waiting})
    blocked: dict[str, float] = {}
    unused: dict[str, list[str]] = {}
    for name in (name for name in wanted if name in waiting):
        change = matters(patient, name, inputs, before)
        if change > REACHED * 1e3:
            blocked[name] = change
        elif change == 0:
            part = left_out(probe.module, name) or name.rpartition(".")[0]
            unused.setdefault(part or name, []).append(name)
    if blocked:
        yield _blocked(probe, blocked, len(wanted))
    read = _read(probe, inputs) if unused else set()
    unused = {part: names for part, names in unused.items() if not _of_a_lone_row(probe, inputs, names, wanted)}
    for names in unused.values():
        yield _unused(patient, probe, names, wanted, reached, read)
    if reached.in_training is not None and not blocked:
        yield from _only_in_eval(patient, probe, inputs, reached.there.keys() - reached.in_training)


def _chooses(name: str, parts: set[str]) -> bool:
    """Whether a parameter belongs to a part that returns indices, such as an indexer of the best keys."""
    return any(name.startswith(f"{part}.") for part in parts)


def _reached_past_gates(patient: Patient, inputs: Inputs) -> set[str]:
    """The parameters with a gradient where no parameter is 0 (ReZero, projections that begin with 0)."""
    other = Probe(patient)
    draw = torch.Generator().manual_seed(12)
    with torch.no_grad():
        for x in other.module.parameters():
            x.add_(0.1 * torch.randn(x.shape, generator=draw).to(x.dtype))
    return set(gradients_of(other, inputs, trainable(other)) or ())


def _of_one_step(probe: Probe, inputs: Inputs) -> set[str]:
    """The weights of the state of RNNs that make one step, from a state of 0: a decoder of one token a call."""
    found: set[str] = set()

    def note(part: nn.Module, given: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x, *state = (*given, *kwargs.values())
        steps = x.shape[0] if x.ndim < 3 else x.shape[1 if getattr(part, "batch_first", False) else 0]
        if (isinstance(part, nn.RNNCellBase) or steps == 1) and not any(bool(y.any()) for y in tensors_in(state)):
            found.update(f"{paths[part]}.{name}" for name, _ in part.named_parameters() if name.startswith("weight_hh"))

    named = probe.module.named_modules()
    paths: dict[nn.Module, str] = {x: path for path, x in named if isinstance(x, (nn.RNNBase, nn.RNNCellBase))}
    hooks = [x.register_forward_pre_hook(note, with_kwargs=True) for x in paths]
    if hooks:
        probe.attempt(inputs)
    for hook in hooks:
        hook.remove()
    return found


def _of_empty_parts(probe: Probe, inputs: Inputs) -> set[str]:
    """The parameters of parts that return a tensor without numbers, as a compressor of more tokens than were given."""
    found: set[str] = set()

    def note(part: nn.Module, _: Any, out: Any) -> None:
        if any(x.numel() == 0 for x in tensors_in(out)):
            found.update(f"{paths[part]}.{name}" for name, _ in part.named_parameters())

    paths = {x: path for path, x in probe.module.named_modules() if path}
    hooks = [x.register_forward_hook(note) for x in paths]
    probe.attempt(inputs)
    for hook in hooks:
        hook.remove()
    return found


def _of_lone_keys(probe: Probe, inputs: Inputs, waiting: dict[str, Tensor]) -> set[str]:
    """The parameters with a gradient of 0, where some attention has a single key, as after pooling."""
    with quiet(), torch.enable_grad(), LoneKeys() as keys:
        out = probe.interface.run(inputs, grad=True).output
    if not keys.met or not out.requires_grad:
        return set()
    found = gradients(out, waiting.values())
    return {name for name, x in zip(waiting, found, strict=True) if x is not None}


def _reads_its_first(probe: Probe, inputs: Inputs, before: Tensor) -> bool:
    """Whether the other tokens change nothing: a causal encoder whose ids hold no end token."""
    after = probe.attempt(moved(inputs, slice(None), slice(1, None), queries=True))
    first = probe.attempt(moved(inputs, slice(None), 0, queries=True))
    if not isinstance(after, Tensor) or not isinstance(first, Tensor):
        return False
    return gap(before, after) == 0 < gap(before, first)


def _of_a_lone_row(probe: Probe, inputs: Inputs, names: list[str], wanted: dict[str, Tensor]) -> bool:
    """Whether these are the numbers of one token, where one token sees a learned key alone: its query changes nothing,
    as its only weight is 1.
    """
    if any(wanted[name].numel() != wanted[name].shape[-1] or wanted[name].ndim < 2 for name in names):
        return False
    before, after = probe.attempt(inputs), probe.attempt(moved(inputs, slice(None), queries=True))
    if not isinstance(before, Tensor) or not isinstance(after, Tensor) or before.shape[1] < 2:
        return False
    return bool((rows(before, after) == 0).all(0).any())


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


def _only_in_eval(patient: Patient, probe: Probe, inputs: Inputs, names: set[str]) -> Iterator[Finding]:
    """Parameters whose gradient is cut off in train mode alone, although the output depends on them there."""
    lost = []
    for name in sorted(names):
        other = Probe(patient)
        other.module.train()
        with Dice(still=True):
            before = other.attempt(inputs)
        x = dict(other.module.named_parameters())[name]
        with torch.no_grad():
            x.add_(torch.randn(x.shape, generator=torch.Generator().manual_seed(11)).to(x.dtype) * 0.5)
        with Dice(still=True):
            after = other.attempt(inputs)
        if isinstance(before, Tensor) and isinstance(after, Tensor) and gap(before, after) > REACHED * 1e3:
            lost.append(name)
    if lost:
        yield Finding(
            "gradient-blocked",
            "bug",
            f"in train mode {_listed(lost)} get{'s' if len(lost) == 1 else ''} no gradient, although the output "
            f"depends on {'it' if len(lost) == 1 else 'them'} there; in eval mode there is one",
            "remove the detach(), .data or torch.no_grad that acts in train mode",
            where=origin(probe.module, lost[0]),
            numbers={"blocked": len(lost)},
        )


def _blocked(probe: Probe, changes: dict[str, float], of: int) -> Finding:
    names, largest = list(changes), max(changes, key=lambda name: changes[name])
    return Finding(
        "gradient-blocked",
        "bug",
        f"{_listed(names)} get{'s' if len(names) == 1 else ''} no gradient, although other numbers in {largest} "
        f"change the output by {changes[largest]:.2g} of its size",
        "remove the detach(), .data, torch.no_grad or rounding between parameter and output",
        where=origin(probe.module, names[0]),
        numbers={"change": changes[largest], "blocked": len(names), "parameters": of},
    )


def _unused(
    patient: Patient, probe: Probe, names: list[str], wanted: dict[str, Tensor], reached: Reached, read: set[str]
) -> Finding:
    """The finding about parameters of one submodule that never get a gradient."""
    holding, attribute = owner(probe.module, names[0])
    holder = names[0].rpartition(".")[0]
    ran = holder in reached.called and type(probe.module.get_submodule(holder)).__module__.startswith("torch.")
    is_read = bool(read & set(names))
    optional = not ran and not is_read and mentioned(holding, attribute)
    outside = left_out(probe.module, names[0])
    holds = probe.module.get_submodule(holder)
    entry = isinstance(holds, nn.ParameterDict | nn.ParameterList)  # beside others that are used, it is no option
    optional = optional and outside is None and not (entry and any(x.startswith(f"{holder}.") for x in reached.there))
    if len(names) > _FEW:
        listed = f"the {len(names)} parameters of {outside or holder}"
    else:
        listed = _listed([f"{name} {list(wanted[name].shape)}" for name in names])
    never = f"{listed} never get{'s' if len(names) == 1 else ''} a gradient"
    if ran:
        evidence = f"{never}: {holder} is computed, but its result is not used"
    elif is_read:
        evidence = f"{never}: forward reads {'it' if len(names) == 1 else 'them'}, and other numbers change nothing"
    elif optional:
        evidence = f"{never} in any way of calling that was tried; some other option may use it"
    else:
        evidence = f"{never}: forward does not use {outside or ('it' if len(names) == 1 else 'them')}"
    matrix = any(wanted[name].ndim >= 2 and min(wanted[name].shape[-2:]) > 1 for name in names)
    library = type(holds).__module__.startswith("torch.") and not entry  # a norm that is left over
    several = not library and any(wanted[name].numel() > 1 and not name.endswith("bias") for name in names)
    instead = None if ran or is_read else _in_its_place(probe, outside or holder)
    if instead is not None:
        evidence = f"{never}, and {instead} is called twice: it stands where {outside or holder} should"
    severity: Severity = "bug" if is_read or instead is not None or ((matrix or several) and not optional) else "risk"
    if not is_read and not matrix and instead is None:
        severity = patient.severity("unused-parameter: of a vector", severity)
    return Finding(
        "unused-parameter",
        severity,
        evidence,
        "use it where it belongs (is another one used in its place?), or remove it",
        where=origin(probe.module, outside or names[0]),
        numbers={"weights": sum(wanted[name].numel() for name in names)},
    )


def _in_its_place(probe: Probe, path: str) -> str | None:
    """The part that runs twice in a call, on other numbers each time, while a part that is its like never runs: of the
    same class and sizes, under the same parent, and with a name that differs in one word, as norm_audio and norm_video.
    """
    parent, _, name = path.rpartition(".")
    if not path or mentioned(probe.module.get_submodule(parent), name):
        return None
    part, holder = probe.module.get_submodule(path), probe.module.get_submodule(parent)
    alike = {
        other: x
        for other, x in holder.named_children()
        if type(x) is type(part) and _sizes(x) == _sizes(part) and _one_word_apart(name, other)
    }
    given: dict[str, list[Tensor]] = {other: [] for other in alike}
    hooks = [
        x.register_forward_pre_hook(lambda _, args, other=other: given[other].append(args[0].detach().clone()))
        for other, x in alike.items()
    ]
    probe.attempt(probe.inputs())
    for hook in hooks:
        hook.remove()
    twice = [other for other, x in given.items() if len(x) == 2 and not _same(*x)]
    return ".".join(filter(None, (parent, twice[0]))) if len(twice) == 1 else None


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)


def _sizes(part: nn.Module) -> list[tuple[str, torch.Size]]:
    return [(name, x.shape) for name, x in part.named_parameters()]


def _one_word_apart(a: str, b: str) -> bool:
    """Whether two names have the same words but for one: norm_q and norm_k, fc1 and fc2."""
    one, two = (re.findall(r"[a-z]+|[A-Z][a-z]*|[0-9]+", x) for x in (a, b))
    return len(one) == len(two) > 1 and sum(x != y for x, y in zip(one, two, strict=True)) == 1


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
