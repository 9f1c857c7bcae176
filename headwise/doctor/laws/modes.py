"""A call by another path gives the same output: in train mode, with a switch turned, and in a copy into which the
state dict was loaded.

In train mode dropout keeps its probability, so that the code takes its training path, but passes everything through. A
switch is an attribute such as `use_flash`, a name of an implementation such as `attn_implementation="sdpa"` (of the
module, of a part of it or of their config), or the argument that asks for the weights.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from headwise.doctor.calling.interface import Inputs
from headwise.doctor.contract import attributes
from headwise.doctor.finding import Finding
from headwise.doctor.patient import Patient
from headwise.doctor.probing.listen import Dice
from headwise.doctor.probing.masking import each, hide, hiding
from headwise.doctor.probing.probe import ROUNDING, Probe, gap, sentence
from headwise.errors import DoctorError
from headwise.language import Sentence
from headwise.registry import find_framework

FINDINGS = ("train-eval-differ", "paths-differ", "state-dict", "weights-unregistered")

_DIFFERENT = 1e-3  # kernels in float32 differ by less
# Words of names: of a switch, beside those, and of an implementation.
_CHOOSES = {"flash", "sdpa", "sdp", "fused", "xformers", "eager", "efficient", "manual", "slow", "naive", "fast", "mem"}
_BESIDE = {"use", "enable", "with", "has", "memory", "eff", "attn", "attention", "2"}
_KERNEL = {"attn", "attention", "impl", "implementation", "internal", "backend", "kernel", "fn", "name"}
_NAMES = ("eager", "sdpa", "manual", "math", "naive", "torch", "einsum", "flash", "fused", "flash_attention_2")

Given = dict[str, Any]  # arguments of forward by name


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    inputs = probe.inputs()
    expected = probe.answers(inputs)
    for found in (_trained(patient, probe, inputs), _switched(patient, probe, inputs)):
        if found is not None:
            yield found
    yield from _loaded(patient, inputs, expected)


def _trained(patient: Patient, probe: Probe, inputs: Inputs) -> Finding | None:
    cells, padding = hiding(inputs, 1)
    for name, options in {"without a mask": {}, "with a mask": cells, "with padding": padding}.items():
        with Dice(still=True):
            expected = probe.attempt(inputs, **options)
        out = _in_train_mode(patient, inputs, options)
        if isinstance(expected, Exception) or out is None:
            continue
        fix = "compute the same in both modes; only dropout may depend on self.training"
        if isinstance(out, Exception):  # it may train with other lengths
            said = Sentence("{name} it runs in eval mode but raises in train mode: {sentence}").format(
                name=name, sentence=sentence(out)
            )
            return Finding("train-eval-differ", "risk", said, fix)
        change = gap(expected, out)
        if change > ROUNDING:
            return Finding(
                "train-eval-differ",
                "bug",
                Sentence(
                    "{name} train and eval mode differ by up to {change:.2g} of the output's size, with dropout "
                    "disabled"
                ).format(name=name, change=change),
                fix,
            )
    return None


def _in_train_mode(patient: Patient, inputs: Inputs, options: dict[str, Any]) -> Tensor | Exception | None:
    """The output as it is trained: with gradients, but with dropout disabled and norms of the batch as in eval mode;
    None if it is still random, by dropout that is written by hand.
    """
    probe = Probe(patient)
    for part in probe.module.train().modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.eval()
    with Dice(still=True):
        out, other = (probe.attempt(inputs, seed=seed, grad=True, **options) for seed in (0, 1))
    random = isinstance(out, Tensor) and isinstance(other, Tensor) and gap(out, other) > 0
    return None if random else out


def switches(module: nn.Module) -> dict[str, tuple[Any, list[Any]]]:
    """Attributes that choose a kernel, by the words of their names: their values, and others that they may have."""
    found: dict[str, tuple[Any, list[Any]]] = {}
    for name, value, _ in attributes(module):
        words = {*name.strip("_").split("_")}
        if isinstance(value, bool) and words & _CHOOSES and words <= _CHOOSES | _BESIDE:
            found[name] = value, [not value]
        elif isinstance(value, str) and words <= _KERNEL and words - {"name", "internal", "fn"}:
            found[name] = value, [x for x in _written(module) if x != value]
    return found


def _written(module: nn.Module) -> list[str]:
    """The names of implementations that the files of its classes write, but for those that none of their models takes,
    as transformers has it: `_supports_sdpa = False`.
    """
    found = {inspect.getmodule(type(part)) for part in module.modules()}
    files = [file for file in found if file is not None and not file.__name__.startswith("torch.")]
    try:
        text = "".join(map(inspect.getsource, files)).replace("'", '"')
    except (OSError, TypeError):
        return []
    models = [x for file in files for x in vars(file).values() if getattr(x, "__module__", "") == file.__name__]
    refused = {name for name in _NAMES if {getattr(x, f"_supports_{name}", None) for x in models} - {None} == {False}}
    return [name for name in _NAMES if f'"{name}"' in text and name not in refused]


def _switched(patient: Patient, probe: Probe, inputs: Inputs) -> Finding | None:
    flags = {x: value for x, value in probe.interface.flags.items() if probe.interface.roles.get(x) == "weights-flag"}
    found = {name: (value, [not value]) for name, value in flags.items()} | switches(probe.module)
    for said, forms in _masked(probe, inputs) if found else ():
        for name, value, other in ((name, value, x) for name, (value, others) in found.items() for x in others):
            turned, more = Probe(patient), {name: other} if name in flags else {}
            for holder in [x for held, _, x in attributes(turned.module) if held == name and not more]:
                setattr(holder, name, other)
            change = _difference(probe, turned, inputs, forms, more)
            if change > _DIFFERENT:
                return Finding(
                    "paths-differ",
                    "bug",
                    Sentence(
                        "with {name} = {other!r}{also} the output differs from that with {name} = {value!r} by up to "
                        "{change:.2g} of its size: two code paths of the same attention do not compute the same"
                    ).format(name=name, other=other, also=said, value=value, change=change),
                    "give both paths the same mask, scale, bias, soft-capping and order of heads, and test one against "
                    "the other",
                )
    return None


def _difference(probe: Probe, turned: Probe, inputs: Inputs, forms: list[Given], more: Given) -> float:
    """The smallest difference among the forms of one mask that the usual path understands; 0 if none runs."""
    usual = probe.attempt(inputs, given=forms[0])
    if not isinstance(usual, Tensor) or not bool(usual.isfinite().all()):
        return 0.0
    changes = []
    for form in forms:
        here, there = probe.attempt(inputs, given=form), turned.attempt(inputs, given={**form, **more})
        if isinstance(here, Tensor) and isinstance(there, Tensor) and gap(usual, here) <= _DIFFERENT:
            changes.append(gap(here, there))
    return min(changes, default=0.0)


def _masked(probe: Probe, inputs: Inputs) -> Iterator[tuple[str, list[Given]]]:
    """What is passed, in words, and the masks: one in each form that it may have. They are causal, too: a path that is
    causal by itself agrees with one that expects the mask from its caller.
    """
    masks = [x for x in each(probe.interface.masks) if x.works and not x.own]
    if not any(x.what == "cells" for x in masks):  # without a mask it may be causal, or not
        yield "", [{}]
    for mask in masks:
        laid = hide(inputs, 1)[:, 0] if mask.what == "keys" else hide(inputs, 1).tril()
        forms = []
        for form in dict.fromkeys((mask.form, "additive")):
            same = dataclasses.replace(mask, form=form)
            try:
                forms.append({mask.parameter: same.value(laid, probe.interface.heads or 1, inputs.query.dtype)})
            except DoctorError:
                continue
        if forms:
            yield Sentence(", with {parameter} that masks key 1,").format(parameter=mask.parameter), forms


def _loaded(patient: Patient, inputs: Inputs, expected: Tensor) -> Iterator[Finding]:
    """Other numbers in weights that no state dict has; and in all others, before the state dict is loaded."""
    missing = False
    for name in unregistered(Probe(patient).module):
        twin = Probe(patient)
        weights = unregistered(twin.module).get(name, [])
        _fill(weights)
        change = gap(expected, twin.output(inputs))
        if change > ROUNDING:
            missing = True
            yield Finding(
                "weights-unregistered",
                "bug",
                Sentence(
                    "{name} holds {weights} weights that forward uses (other numbers change the output by {change:.2g} "
                    "of its size) but state_dict() and parameters() do not list: they are neither saved nor trained"
                ).format(name=name, weights=sum(x.numel() for x in weights), change=change),
                "keep modules in nn.ModuleList or nn.ModuleDict, and tensors in nn.Parameter",
            )
    saved = {n: x.clone() if isinstance(x, Tensor) else x for n, x in Probe(patient).module.state_dict().items()}
    other = Probe(patient)
    if find_framework(other.module) is not None:  # Keras gives the weights of a copy new names
        saved = dict(zip(other.module.state_dict(), saved.values(), strict=True))
    _fill(x for n, x in (*other.module.named_parameters(), *other.module.named_buffers()) if n in saved)
    fix = "register parameters and buffers under fixed names, and compute what depends on them in forward"
    try:
        other.module.load_state_dict(saved)
    except Exception as problem:
        yield Finding(
            "state-dict",
            "bug",
            Sentence("its own state dict cannot be loaded: {sentence}").format(sentence=sentence(problem)),
            fix,
        )
        return
    change = gap(expected, other.output(inputs))
    if change > ROUNDING and not missing:
        yield Finding(
            "state-dict",
            "bug",
            Sentence(
                "after its state dict is loaded into a copy with other numbers, the output differs by up to "
                "{change:.2g} of its size"
            ).format(change=change),
            fix,
        )


def unregistered(module: nn.Module) -> dict[str, list[Tensor]]:
    """Weights in plain attributes, by path: those of modules that are no parts, and tensors that want a gradient."""
    registered = {id(x) for x in (*module.parameters(), *module.buffers(), *module.modules())}
    found: dict[str, list[Tensor]] = {}
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            held = [x for x in _held(value) if id(x) not in registered]
            weights = [y for x in held for y in (x.parameters() if isinstance(x, nn.Module) else [x])]
            weights = [x for x in weights if id(x) not in registered and x.is_floating_point() and x.requires_grad]
            if weights:
                found[f"{path}.{name}" if path else name] = weights
    return found


def _held(value: Any, depth: int = 0) -> Iterator[Tensor | nn.Module]:
    """Tensors and modules, also in lists and dicts."""
    if isinstance(value, (nn.Module, Tensor)):
        yield value
    elif isinstance(value, (list, tuple, dict)) and depth < 3:
        for x in value.values() if isinstance(value, dict) else value:
            yield from _held(x, depth + 1)


@torch.no_grad()
def _fill(tensors: Iterable[Tensor]) -> None:
    """Fill with other numbers of the same kind, in place; a tensor that overlaps itself (expanded) is left as it is."""
    draw = torch.Generator().manual_seed(5)
    for x in tensors:
        if any(step == 0 and n > 1 for step, n in zip(x.stride(), x.shape, strict=True)):
            continue
        if x.is_floating_point():
            x.copy_(torch.randn(x.shape, generator=draw, dtype=torch.float64))
        elif x.dtype == torch.bool:
            x.logical_not_()
