"""The law that every parameter acts: what forward returns depends on it, and a gradient tells it so.

A parameter that no gradient reaches, in any way of calling the module that was tried, is changed. If the output
changes, its gradient is cut off; if not, it is not used. A path through a softmax that has a gradient of 0 proves
nothing: all keys may be hidden, or there may be one key, whose weight is 1. And weights that begin with 0 must become
other numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from headwise.doctor.calling.interface import Inputs
from headwise.doctor.finding import Finding, Severity
from headwise.doctor.lines import last_line
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.listen import Dice
from headwise.doctor.probing.probe import REACHED, ROUNDING, Probe, gap, gradients, quiet, sentence, weighting
from headwise.doctor.probing.reached import behind, gradients_of, matters, stir, trainable
from headwise.doctor.reading.creation import left_out, mentioned, origin, owner
from headwise.language import Sentence, join

FINDINGS = ("unused-parameter", "gradient-blocked", "zero-start", "does-not-run")

_ACTS = REACHED * 1e3
_SOFTMAX = ("oftmax", "DotProduct", "ExpBackward")
_CANCELS = 1e-5  # of the largest gradient
_FEW = 4  # parameters that are named
_STEPS = 3  # of gradient descent: a step of the others may wake a weight


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    inputs = probe.inputs()
    before = probe.answers(inputs)
    wanted = trainable(probe)
    if not wanted:
        raise NotApplicable("it has no parameters that require a gradient")
    reached = patient.reached
    if not reached.calls:
        if patient.serves:
            raise NotApplicable("its forward is declared without gradients, for decoding")
        with torch.enable_grad():
            error = probe.attempt(inputs, grad=True)
        if isinstance(error, Exception):
            said = Sentence(
                "with gradients, which torch records unless it is told not to, it raises {sentence}"
            ).format(sentence=sentence(error))
            yield Finding(
                "does-not-run", "bug", said, "change no tensor in place that a gradient needs", last_line(error)
            )
        else:
            yield _blocked(patient, list(wanted), "autograd finds no path from the output to it")
        return
    choosing = tuple(f"{part}." for part in reached.choosing)  # such as an indexer of the best keys
    silent = [x for x in wanted if x not in reached.there and not x.startswith(choosing)]
    changes = {name: matters(patient, name, inputs, before) for name in silent}
    blocked = {name: change for name, change in changes.items() if change > _ACTS}
    unused = [name for name in silent if changes[name] == 0]
    if unused:  # what acts through a softmax alone may be hidden by a mask, or belong to the only key
        proven = (wanted.keys() - reached.joined) | _past_softmaxes(probe, inputs, wanted)
        unused = [name for name in unused if name in proven]
    if blocked:
        largest = max(blocked, key=lambda name: blocked[name])
        why = Sentence("other numbers in {largest} change the output by {change:.2g} of its size")
        yield _blocked(patient, list(blocked), why.format(largest=largest, change=blocked[largest]))
    if unused:
        yield from _unused(patient, probe, inputs, {name: wanted[name] for name in unused})
    yield from _cancel(patient, inputs)
    yield from _stays_zero(patient, probe, inputs)


def _past_softmaxes(probe: Probe, inputs: Inputs, wanted: dict[str, Tensor]) -> set[str]:
    """The parameters to which there is a path from the output that passes no softmax."""
    with quiet(), Dice(still=True), torch.enable_grad():
        out = probe.interface.run(inputs, grad=True).output
    names = {id(x): name for name, x in wanted.items()}
    nodes = behind(out, lambda node: any(word in node.name() for word in _SOFTMAX))
    return {names.get(id(node.variable), "") for node in nodes if hasattr(node, "variable")}


def _cancel(patient: Patient, inputs: Inputs) -> Iterator[Finding]:
    """The finding about weights of the inputs whose gradient is a rounding error: a softmax takes away what is the same
    for all keys. (Biases of keys cancel in every attention.) It must be so with the weights as they are and with noise
    added to them, because very small weights have such gradients too, and so do very large ones.
    """
    faint = _faint(patient, inputs, 0.0)
    faint = [name for name in faint if name in _faint(patient, inputs, 0.3)] if faint else []
    if faint:
        yield Finding(
            "unused-parameter",
            "bug",
            Sentence(
                "the gradient of {listed} is a rounding error, and other numbers in it change nothing: what it adds "
                "to a row of scores is the same for every key, and the softmax takes it away"
            ).format(listed=_listed(faint)),
            "put something between the sum of query and key and the softmax, such as tanh and a vector, or multiply "
            "the two",
            where=origin(patient.module, faint[0]),
        )


def _faint(patient: Patient, inputs: Inputs, noise: float) -> list[str]:
    """The weights of the inputs whose gradient, and effect on the output, are rounding errors once all got noise."""
    probe, other = Probe(patient), Probe(patient)
    for each in (probe, other):
        stir(each.module.parameters(), size=noise)
    wanted, widths = trainable(probe), {x.shape[-1] for x in inputs.tensors().values()}
    with quiet(), Dice(still=True), torch.enable_grad():
        out = probe.interface.run(inputs, grad=True).output
        slopes = dict(zip(wanted, gradients(out, wanted.values()), strict=True))
    sizes = {name: float(x.abs().amax()) for name, x in slopes.items() if x is not None and x.numel()}
    most = max(sizes.values(), default=0.0)
    found = [name for name, size in sizes.items() if 0 < size <= _CANCELS * most]
    found = [name for name in found if wanted[name].ndim == 2 and widths & {*wanted[name].shape}]
    stir([x for name, x in other.module.named_parameters() if name in found], 11, 1.0)
    changed = other.attempt(inputs) if found else None
    return found if isinstance(changed, Tensor) and gap(out.detach(), changed) <= ROUNDING else []


def _blocked(patient: Patient, names: list[str], why: str) -> Finding:
    return Finding(
        "gradient-blocked",
        "bug",
        Sentence("no gradient reaches {listed}: {why}").format(listed=_listed(names), why=why),
        "remove the detach(), .data, torch.no_grad or rounding between parameter and output",
        where=origin(patient.module, names[0]),
    )


def _unused(patient: Patient, probe: Probe, inputs: Inputs, unused: dict[str, Tensor]) -> Iterator[Finding]:
    """The findings about parameters without a path to the output: one for each part that holds some."""
    read, calls = _read(probe, inputs)
    groups: dict[str, list[str]] = {}
    for name in unused:
        holder = probe.module.get_submodule(name.rpartition(".")[0])
        of_state = isinstance(holder, (nn.RNNBase, nn.RNNCellBase)) and "weight_hh" in name  # which begins as 0
        if of_state or not any(bool(x.any()) for x in calls.get(holder, [torch.ones(1)])):
            continue  # it was given nothing
        groups.setdefault(left_out(probe.module, name) or name.rpartition(".")[0] or name, []).append(name)
    for part, names in groups.items():
        outer = left_out(probe.module, names[0])
        twin = _in_its_place(probe.module, part, calls)
        severity: Severity = "bug"
        if read & set(names):
            why = "forward reads it, and nothing that it returns depends on it"
        elif twin is not None:
            why = Sentence("{twin} is called twice: it stands where {part} should").format(twin=twin, part=part)
        elif outer is None and mentioned(*owner(probe.module, names[0])):
            why, severity = "so it is in any way of calling that was tried; some other option may use it", "risk"
        else:
            why = Sentence("forward does not use {part}").format(part=part)
            holder = probe.module.get_submodule(names[0].rpartition(".")[0])
            plain = type(holder).__module__.startswith("torch.")  # a norm or a bias may be left over
            own = not plain and any(unused[name].numel() > 1 and not name.endswith("bias") for name in names)
            if not own and all(unused[name].ndim < 2 for name in names):
                severity = patient.severity("unused-parameter: of a vector", "risk")
        listed = _listed([f"{name} {list(unused[name].shape)}" for name in names])
        yield Finding(
            "unused-parameter",
            severity,
            Sentence("no gradient ever reaches {listed}: {why}").format(listed=listed, why=why),
            "use it where it belongs (is another one used in its place?), or remove it",
            where=origin(probe.module, outer or names[0]),
        )


def _read(probe: Probe, inputs: Inputs) -> tuple[set[str], dict[nn.Module, list[Tensor]]]:
    """The parameters that a call takes from their modules, and what each part is given."""
    names = {id(x): name for name, x in probe.module.named_parameters()}
    found: set[str] = set()
    calls: dict[nn.Module, list[Tensor]] = {}
    before = nn.Module.__getattr__

    def read(module: nn.Module, name: str) -> Any:
        value = before(module, name)
        found.add(names.get(id(value), ""))
        return value

    def note(part: nn.Module, given: tuple[Any, ...]) -> None:
        calls.setdefault(part, []).extend(x.detach().clone() for x in given[:1] if isinstance(x, Tensor))

    hooks = [part.register_forward_pre_hook(note) for part in probe.module.modules()]
    with mock.patch.object(nn.Module, "__getattr__", read):
        probe.attempt(inputs)
    for hook in hooks:
        hook.remove()
    return found, calls


def _in_its_place(module: nn.Module, path: str, calls: dict[nn.Module, list[Tensor]]) -> str | None:
    """The part that is called on two tensors, while a part that is its like never is: of the same class and sizes, and
    with the same parent.
    """
    parent, _, name = path.rpartition(".")
    holder = module.get_submodule(parent)
    part = dict(holder.named_children()).get(name)
    if part is None or part in calls or mentioned(holder, name):
        return None
    shapes = [(name, x.shape) for name, x in part.named_parameters()]
    twice = [
        other
        for other, x in holder.named_children()
        if type(x) is type(part)
        and [(name, y.shape) for name, y in x.named_parameters()] == shapes
        and len(given := calls.get(x, [])) == 2
        and not (given[0].shape == given[1].shape and torch.equal(*given))
    ]
    return ".".join(filter(None, (parent, twice[0]))) if len(twice) == 1 else None


def _stays_zero(patient: Patient, probe: Probe, inputs: Inputs) -> Iterator[Finding]:
    """Weights that begin with 0, that a gradient reaches where they are not 0, and that stay 0 in training."""
    twin = patient.fresh(as_given=True)
    parameters = {n: x for n, x in twin.module.named_parameters() if x.requires_grad}
    zero = {n for n, x in parameters.items() if x.ndim >= 2 and not nn.parameter.is_lazy(x) and not x.any()}
    if len(zero) < 2:
        return
    awake = gradients_of(probe, inputs, trainable(probe)) or {}
    waiting = {name for name in zero if name in awake and bool(awake[name].any())}
    for seed in range(_STEPS):
        try:
            with quiet(seed), Dice(still=True), torch.enable_grad():
                out = twin.interface.run(inputs.each(Tensor.clone), grad=True).output
                slopes = torch.autograd.grad(out, list(parameters.values()), weighting(out), allow_unused=True)
        except Exception:  # it is not trained in this way
            return
        with torch.no_grad():
            for x, slope in zip(parameters.values(), slopes, strict=True):
                if slope is not None:
                    x.sub_(0.01 * slope)
        waiting = {name for name in waiting if not parameters[name].any()}
    if len(waiting) > 1:
        yield Finding(
            "zero-start",
            "bug",
            Sentence(
                "{listed} begin with 0 and stay 0: after {steps} steps of gradient descent none of them has got a "
                "gradient, because each is multiplied by the other"
            ).format(listed=_listed(sorted(waiting)), steps=_STEPS),
            "initialise all but the last of them with small random numbers",
            where=origin(patient.module, min(waiting)),
        )


def _listed(names: list[str]) -> str:
    if len(names) > _FEW:
        return Sentence("{count} parameters, {first} first").format(count=len(names), first=names[0])
    return join(filter(None, (", ".join(names[:-1]), names[-1])), " and ")
