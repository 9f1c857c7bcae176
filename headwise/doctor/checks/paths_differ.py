"""Whether the code paths of a module compute the same: eager and fused, with and without the weights returned.

A switch is an attribute such as `use_flash`, a name of an implementation such as `attn_implementation="sdpa"` (of the
module, of a part of it or of their config), or the argument that asks for the weights. It is set to its other values,
and the same call must give the same output: without a mask, and with one key hidden.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.masking import hiding
from headwise.doctor.probing.probe import Probe, gap

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


@dataclasses.dataclass(frozen=True)
class _Switch:
    """An attribute, held by these parts of the module, and the values that it may have instead."""

    paths: tuple[str, ...]
    name: str
    value: Any
    others: tuple[Any, ...]
    in_config: str = ""

    def set(self, module: nn.Module, value: Any) -> None:
        for path in self.paths:
            part = module.get_submodule(path)
            holder = getattr(part, self.in_config) if self.in_config else part
            setattr(holder, self.name, value)


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    inputs = probe.inputs()
    probe.answers(inputs)
    switches = list(_switches(probe.module))
    flags = [name for name, role in probe.interface.roles.items() if role == "weights-flag"]
    flags = [name for name in flags if name in probe.interface.flags]
    if not switches and not flags:
        raise NotApplicable("it has one code path")
    ran = 0
    cells, padding = hiding(inputs, 1)
    calls: dict[str, dict[str, Any]] = {", with key 1 masked,": cells, ", with key 1 as padding,": padding}
    if not any(m.works and m.what == "cells" for m in probe.interface.masks):  # without one it may be causal, or not
        calls = {"": {}, **calls}
    for said, options in calls.items():
        expected = probe.attempt(inputs, **options)
        if not isinstance(expected, Tensor) or not bool(expected.isfinite().all()):
            continue
        for flag in flags:
            usual = probe.interface.flags[flag]
            out = probe.attempt(inputs, **options, given={**options.get("given", {}), flag: not usual})
            ran += isinstance(out, Tensor)
            if isinstance(out, Tensor) and gap(expected, out) > _DIFFERENT:
                yield _finding(f"{flag} = {not usual}", f"{flag} = {usual}", said, gap(expected, out))
                return
        for switch in switches:
            for value in switch.others:
                other = Probe(patient)
                switch.set(other.module, value)
                out = other.attempt(inputs, **options)
                ran += isinstance(out, Tensor)
                if isinstance(out, Tensor) and gap(expected, out) > _DIFFERENT:
                    here = f"{switch.name} = {switch.value!r}"
                    yield _finding(f"{switch.name} = {value!r}", here, said, gap(expected, out))
                    return
    if not ran:
        raise NotChecked("no other code path runs here")


def _finding(other: str, usual: str, said: str, change: float) -> Finding:
    return Finding(
        "paths-differ",
        "bug",
        f"with {other}{said} the output differs from that with {usual} by up to {change:.2g} of its size: two code "
        "paths of the same attention do not compute the same",
        "give both paths the same mask, scale, bias, soft-capping and order of heads, and test one against the other",
        numbers={"change": change},
    )


def _switches(module: nn.Module) -> Iterator[_Switch]:
    """The switches, each once for all parts that have it with the same value."""
    found: dict[tuple[str, str, Any], list[str]] = {}
    texts: dict[tuple[str, str, Any], str] = {}
    for path, part in module.named_modules():
        if type(part).__module__.startswith("torch."):
            continue
        configs = {name: x for name, x in vars(part).items() if name in ("config", "cfg", "args")}
        for where, holder in {"": part, **configs}.items():
            for name, value in list(getattr(holder, "__dict__", {}).items()):
                names = {bool: _SWITCH, str: _NAME}.get(type(value))
                if names and names.match(name):
                    key = (where, name, value)
                    found.setdefault(key, []).append(path)
                    texts[key] = texts.get(key, "") + _file_of(type(part))
    for (where, name, value), paths in found.items():
        if isinstance(value, bool):
            others: tuple[Any, ...] = (not value,)
        else:
            written = set(re.findall(r"[\"'](\w+)[\"']", texts[where, name, value]))
            others = tuple(x for x in _NAMES if x != value and x in written)
        if others:
            yield _Switch(tuple(paths), name, value, others, where)


def _file_of(kind: type) -> str:
    """The text of the file that defines a class."""
    try:
        return inspect.getsource(inspect.getmodule(kind) or kind)
    except (OSError, TypeError):
        return ""
