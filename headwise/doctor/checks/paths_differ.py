"""Whether the code paths of a module compute the same: eager and fused, with and without the weights returned.

A switch is an attribute such as `use_flash`, a name of an implementation such as `attn_implementation="sdpa"` (of the
module, of a part of it or of their config), or the argument that asks for the weights. It is set to its other values,
and the same call must give the same output: without a mask, and with every mask that works. The masks are causal too:
a path that is causal by itself agrees with one that expects the mask from its caller.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from headwise.doctor.calling.interface import Inputs
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.masking import hide
from headwise.doctor.probing.probe import Probe, gap
from headwise.errors import DoctorError

FINDINGS = ("paths-differ",)

_SWITCH = re.compile(
    r"^_?(use_|enable_|with_|has_)?(flash|sdpa|sdp|fused_attn|fused_attention|mem(ory)?_eff(icient)?|xformers|eager"
    r"|fast_attn|fast_attention|efficient_attn|manual_attn|slow_attn|naive_attn)(_attn|_attention|_attention_2)?$"
)
_NAME = re.compile(
    r"^_*(attn|attention)_?(impl(ementation)?(_internal)?|backend|kernel|fn_name)$|^(impl|attn_backend)$"
)
_NAMES = ("eager", "sdpa", "manual", "math", "naive", "torch", "einsum", "flash", "fused", "flash_attention_2")
_DIFFERENT = 1e-3  # kernels in float32 differ by less

Given = dict[str, Any]  # arguments of forward by name


@dataclasses.dataclass(frozen=True)
class Switch:
    """An attribute, held by some parts of the module or their configs, or an argument; its value, and another one."""

    name: str
    value: Any
    other: Any
    paths: tuple[str, ...] = ()  # none: an argument of forward
    config: str = ""

    def turned(self, patient: Patient) -> tuple[Probe, Given]:
        """The module on the other path, and the argument that takes it there."""
        probe = Probe(patient)
        for path in self.paths:
            part = probe.module.get_submodule(path)
            setattr(getattr(part, self.config) if self.config else part, self.name, self.other)
        return probe, {} if self.paths else {self.name: self.other}


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    inputs = probe.inputs()
    probe.answers(inputs)
    switches = [*_arguments(probe), *_attributes(probe.module)]
    if not switches:
        raise NotApplicable("it has one code path")
    ran = 0
    for said, forms in _calls(probe, inputs):
        for switch in switches:
            change = _difference(patient, switch, inputs, forms)
            ran += change is not None
            if change is not None and change > _DIFFERENT:
                yield Finding(
                    "paths-differ",
                    "bug",
                    f"with {switch.name} = {switch.other!r}{said} the output differs from that with {switch.name} = "
                    f"{switch.value!r} by up to {change:.2g} of its size: two code paths of the same attention do not "
                    "compute the same",
                    "give both paths the same mask, scale, bias, soft-capping and order of heads, and test one against "
                    "the other",
                    numbers={"change": change},
                )
                return
    if not ran:
        raise NotChecked("no other code path runs here")


def _difference(patient: Patient, switch: Switch, inputs: Inputs, forms: list[Given]) -> float | None:
    """The smallest difference among the forms of one mask that the usual path understands; None if none runs."""
    probe, (turned, more) = Probe(patient), switch.turned(patient)
    usual = probe.attempt(inputs, given=forms[0])
    if not isinstance(usual, Tensor) or not bool(usual.isfinite().all()):
        return None
    changes = []
    for form in forms:
        here = probe.attempt(inputs, given=form)
        there = turned.attempt(inputs, given={**form, **more})
        if isinstance(here, Tensor) and isinstance(there, Tensor) and gap(usual, here) <= _DIFFERENT:
            changes.append(gap(here, there))
    return min(changes, default=None)


def _calls(probe: Probe, inputs: Inputs) -> Iterator[tuple[str, list[Given]]]:
    """What is passed, in words, and the masks: one in each form that it may have."""
    masks = [m for m in probe.interface.masks if m.works and not m.own]
    if not any(m.what == "cells" for m in masks):  # without a mask it may be causal, or not
        yield "", [{}]
    for name in dict.fromkeys(m.parameter for m in masks):
        mask = next(m for m in masks if m.parameter == name)
        allowed = hide(inputs, 1)
        laid = allowed[:, 0] if mask.what == "keys" else allowed.tril()
        forms = []
        for form in dict.fromkeys((mask.form, "additive")):
            try:
                value = dataclasses.replace(mask, form=form).value(laid, probe.interface.heads or 1, inputs.query.dtype)
            except DoctorError:
                continue
            forms.append({name: value})
        if forms:
            yield f", with {name} that masks key 1,", forms


def _arguments(probe: Probe) -> Iterator[Switch]:
    """The arguments that ask for the weights."""
    for name, role in probe.interface.roles.items():
        if role == "weights-flag" and name in probe.interface.flags:
            value = probe.interface.flags[name]
            yield Switch(name, value, not value)


def _attributes(module: nn.Module) -> Iterator[Switch]:
    """The attributes, each once for all parts that have it with the same value."""
    found: dict[tuple[str, str, Any], list[str]] = {}
    texts: dict[tuple[str, str, Any], str] = {}
    for path, part in module.named_modules():
        if type(part).__module__.startswith("torch."):
            continue
        configs = {name: x for name, x in vars(part).items() if name in ("config", "cfg", "args")}
        for config, holder in {"": part, **configs}.items():
            for name, value in list(getattr(holder, "__dict__", {}).items()):
                names = {bool: _SWITCH, str: _NAME}.get(type(value))
                if names and names.match(name):
                    found.setdefault((config, name, value), []).append(path)
                    texts[config, name, value] = texts.get((config, name, value), "") + _file_of(type(part))
    for (config, name, value), paths in found.items():
        if isinstance(value, bool):
            others: list[Any] = [not value]
        else:
            written = set(re.findall(r"[\"'](\w+)[\"']", texts[config, name, value]))
            kinds = {type(module.get_submodule(path)) for path in paths}
            others = [x for x in _NAMES if x != value and x in written and not any(_refused(x, k) for k in kinds)]
        for other in others:
            yield Switch(name, value, other, tuple(paths), config)


def _refused(implementation: str, kind: type) -> bool:
    """Whether the models in the file of a class say that none of them takes this implementation, as in transformers."""
    here = vars(inspect.getmodule(kind) or kind).values()
    models = [x for x in here if isinstance(x, type) and x.__module__ == kind.__module__]
    said = {getattr(x, f"_supports_{implementation}", None) for x in models} - {None}
    return said == {False}


def _file_of(kind: type) -> str:
    """The text of the file that defines a class."""
    try:
        return inspect.getsource(inspect.getmodule(kind) or kind)
    except (OSError, TypeError):
        return ""
