"""The same call gives the same output: at once again, after other calls, with its tensors in another memory layout; and
it leaves its arguments as they were.

Each comparison has copies of its own. What a module keeps shows where a copy that was called before differs from one
that was not; chance shows where two copies that were not called before differ.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from headwise.doctor.calling import names, sizes
from headwise.doctor.calling.copying import copied
from headwise.doctor.calling.interface import Inputs, Interface
from headwise.doctor.calling.signature import signature
from headwise.doctor.calling.token_ids import is_on_embeddings
from headwise.doctor.calling.way import noise
from headwise.doctor.finding import Finding
from headwise.doctor.lines import is_users
from headwise.doctor.parts import calls_in
from headwise.doctor.patient import Patient
from headwise.doctor.probing.listen import Dice
from headwise.doctor.probing.masking import each, given
from headwise.doctor.probing.probe import ROUNDING, Probe, gap, quiet, sentence
from headwise.doctor.subject import foreign_backend
from headwise.errors import DoctorError
from headwise.language import Sentence

FINDINGS = ("input-modified", "state-kept", "dropout-in-eval", "noncontiguous-input")

_LONGEST, _PARTS = 600, 60  # tokens of a call; parts of a module that are compared one by one
_LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "a transpose of [B, M, N]": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "a transpose of [N, B, M]": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "every second number of a wider tensor": lambda x: torch.stack([x, x], -1).flatten(-2)[..., ::2],
}


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a module, and how it differs from the usual one, in words."""

    said: str
    inputs: Inputs
    given: dict[str, Any] = dataclasses.field(default_factory=dict)
    train: bool = False


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient.fresh(as_given=True))
    inputs = probe.inputs()
    before = probe.answers(inputs)
    yield from _arguments(Probe(patient))
    again = _again(patient, probe, inputs, before)
    if again is not None:
        yield again
        return
    kept = _later(patient, probe, inputs) or _apart(patient, inputs)
    if kept is not None:
        yield kept
    yield from _memory_layouts(Probe(patient), inputs, before)


def _again(patient: Patient, probe: Probe, inputs: Inputs, before: Tensor) -> Finding | None:
    """A second call, with the same random numbers and with others."""
    change = gap(before, probe.output(inputs))
    chance = gap(before, Probe(patient.fresh(as_given=True)).output(inputs, seed=1))
    if change > 0 and chance == 0:
        interface = probe.interface
        told = [x for x in interface.roles if interface.roles[x] in ("cache", "positions") or "cache" in x.lower()]
        return Finding(
            "state-kept",
            "risk" if told or forgets(probe.module) else "bug",  # it may be meant to continue the last call
            Sentence(
                "a second call with the same input and the same random numbers differs from the first by {change:.2g} "
                "of the output's size: the module keeps state from its last call"
            ).format(change=change),
            "keep no state between calls, or take it as an argument and return it",
        )
    return _by_chance(patient, probe, inputs, chance) if chance > 0 else None


def _by_chance(patient: Patient, probe: Probe, inputs: Inputs, change: float) -> Finding:
    with Dice() as dice:
        probe.output(inputs)
    cause = min(dice.heard, key=lambda x: (not x.p, not x.dropout), default=None)
    seen = Sentence(
        "two calls in eval mode with the same input differ by up to {change:.2g} of the output's size"
    ).format(change=change)
    severity = patient.severity("dropout-in-eval: random numbers", "risk")
    if cause is not None and (cause.dropout or cause.p):
        severity = "bug"
    fix = "draw random numbers only if self.training is True"
    if cause is not None and cause.p:
        fused = cause.function == "scaled_dot_product_attention"
        name = cause.function.replace("scaled_dot", "the dropout_p of scaled_dot")
        fix = (
            "pass dropout_p=self.dropout if self.training else 0.0"
            if fused
            else "pass training=self.training to F.dropout, or use an nn.Dropout that is registered (not in a plain "
            "list), so that eval() reaches it"
        )
        seen = Sentence("{seen}: {name} with p = {p:g} acts").format(seen=seen, name=name, p=cause.p)
    elif foreign_backend(patient.module) and _has_dropout(patient):
        seen = Sentence("{seen}: it has dropout, which acts although training=False was passed").format(seen=seen)
        severity, fix = "bug", "pass training= on to its dropout"
    elif cause is not None:
        seen = Sentence("{seen}: {function} is called").format(seen=seen, function=cause.function)
    where = cause.where if cause is not None and cause.where and is_users(cause.where.file) else None
    return Finding("dropout-in-eval", severity, seen, fix, where)


def _has_dropout(patient: Patient) -> bool:
    """Whether a layer of another framework has dropout, by its parts or its code."""
    kinds = (type(part).__name__ for part in patient.module.modules())
    return "dropout(" in patient.source.lower() or any("Dropout" in kind for kind in kinds)


def forgets(module: nn.Module) -> str:
    """The name of a method that is there to forget what calls leave behind; "" if there is none."""
    own = {name for part in module.modules() for name in dir(type(part))} - set(dir(nn.Module))
    for name in sorted(own):
        first, *rest = name.lower().split("_")
        kept = any(word in x for x in rest for word in ("cache", "state", "mem", "buffer", "kv", "segment", "sequence"))
        if first in ("reset", "clear", "flush", "empty", "init") and kept:
            return f"{name}()"
        if first in ("reset", "start", "begin") and (not rest or kept):
            return f"{name}()"
    return ""


def _later(patient: Patient, probe: Probe, inputs: Inputs) -> Finding | None:
    """Many calls of one copy, of which each must give what it gives to a copy that was not called before."""
    used, last = Probe(patient.fresh(as_given=True)), "the usual input"
    for call in _calls(probe, inputs):
        unused = Probe(patient.fresh(as_given=True))
        for one in (used, unused):
            one.module.train(call.train)
        expected = unused.attempt(call.inputs, given=call.given)
        if isinstance(expected, Exception):
            continue
        out = used.attempt(call.inputs, given=call.given)
        change = float("inf") if isinstance(out, Exception) else gap(expected, out)
        if change > ROUNDING and not call.train:
            return _kept(probe.module, last, call.said, out if isinstance(out, Exception) else change)
        last = call.said
    return None


def _calls(probe: Probe, inputs: Inputs) -> Iterator[Call]:
    """Calls in an order in which each differs from an earlier one in one thing."""
    yield Call("the usual input", inputs)
    yield Call("other numbers", probe.inputs(seed=1))
    for mask in (x for x in each(probe.interface.masks) if x.works):
        keys = (inputs.key_length - 1, inputs.key_length - 2) if mask.shape == "B" else (1, 2)
        with contextlib.suppress(DoctorError):  # it cannot hide these keys
            yield Call(
                Sentence("another {name}").format(name=mask.parameter),
                inputs,
                given(probe.interface, mask, inputs, keys[0]),
            )
            yield Call(
                Sentence("another {name}").format(name=mask.parameter),
                inputs,
                given(probe.interface, mask, inputs, *keys),
            )
    for name, x in probe.others(inputs).items():  # a memory of which it keeps what it once made
        memory = isinstance(x, Tensor) and x.ndim == 3 and x.is_floating_point()
        if memory and not {"mask", "bias"} & {*name.split("_")}:
            yield Call(
                Sentence("another {name}").format(name=name),
                inputs,
                {name: noise(*x.shape, seed=83, dtype=x.dtype, device=x.device)},
            )
    if probe.interface.length is None:
        for said, length in (("fewer tokens", 4), ("more tokens", 9), ("fewer tokens", 4)):
            yield Call(said, probe.inputs(length=length))
        for stated in _stated_lengths(probe.module):
            yield Call(Sentence("{stated} tokens").format(stated=stated + 1), probe.inputs(batch=1, length=stated + 1))
            yield Call("4 tokens", probe.inputs(batch=1, length=4))
    if probe.interface.batched:
        yield Call("another batch size", probe.inputs(batch=2))
    for name in (x for x, value in probe.interface.flags.items() if not value and "cache" in x):
        yield Call(f"{name}=True", inputs, {name: True})
        yield Call(Sentence("no {name}").format(name=name), inputs)
    counting = (x for x in probe.module.modules() if type(x).__module__.startswith("torch.nn."))
    if not any(next(x.buffers(recurse=False), None) is not None for x in counting):  # no batch norm, no spectral norm
        yield Call("the same input in train mode", inputs, train=True)
        yield Call("the same input in eval mode", inputs)


def _stated_lengths(module: nn.Module) -> list[int]:
    """The shortest and the longest length that it is made for; one token more may change its tables for good."""
    tables = [n for x in module.buffers() for n in x.shape[-2:]]
    found = sorted({n for n in (*sizes.find(module, names.LENGTHS), *tables) if 9 <= n <= _LONGEST})
    return list(dict.fromkeys((*found[:1], *found[-1:])))


def _kept(module: nn.Module, last: str, what: str, change: float | Exception) -> Finding:
    """The finding about a later call: how far it is from the same call alone, or what it raises."""
    if isinstance(change, Exception):
        so = Sentence("raises {sentence}").format(sentence=sentence(change))
    else:
        so = Sentence("differs by {change:.2g} of the output's size from the same call alone").format(change=change)
    method = "" if what.startswith("no ") else forgets(module)  # a cache that is not to be used is not read
    return Finding(
        "state-kept",
        "risk" if method else "bug",
        Sentence(
            "after a call with {last}, one with {what} {so}: the module keeps something of an earlier call{more}"
        ).format(
            last=last,
            what=what,
            so=so,
            more=Sentence("; {method} may be meant to be called between them").format(method=method) if method else "",
        ),
        "keep nothing that depends on the inputs, or keep it by everything that it depends on: length, batch "
        "size, contents of the mask, dtype and device",
    )


def _apart(patient: Patient, inputs: Inputs) -> Finding | None:
    """A part of the module that gives something else in it than alone: parts share something that one of them made."""
    probe, alone = Probe(patient.fresh(as_given=True)), Probe(patient.fresh(as_given=True))
    parts = {n: x for n, x in probe.module.named_modules() if n and not type(x).__module__.startswith("torch.")}
    if not 1 < len(parts) <= _PARTS:
        return None
    outs: dict[str, Tensor] = {}

    def note(name: str, out: Any) -> None:
        if name not in outs and isinstance(out, Tensor) and out.is_floating_point():
            outs[name] = out.detach().clone()  # the next part may write to it

    for name, part in parts.items():
        part.register_forward_hook(lambda _, __, out, name=name: note(name, out))
    for name, (args, kwargs) in calls_in(parts, lambda: probe.attempt(inputs)).items():
        if is_on_embeddings(patient.module) and any(isinstance(x, Tensor) and not x.is_floating_point() for x in args):
            continue  # a table of tokens: within the module the doctor replaces what it gives
        try:
            with quiet(), torch.no_grad():
                change = gap(outs[name], copied(alone.module.get_submodule(name))(*args, **kwargs))
        except Exception:
            continue
        if change > ROUNDING:
            return Finding(
                "state-kept",
                "bug",
                Sentence(
                    "{name} with the same input gives another output alone than inside of the module: they differ by "
                    "{change:.2g} of its size. It uses what another part has left, a mask or a table for example"
                ).format(name=name, change=change),
                "keep what is shared by everything that it depends on: length, window, dtype and device",
            )
    return None


def _memory_layouts(probe: Probe, inputs: Inputs, before: Tensor) -> Iterator[Finding]:
    """Exactly these tensors are passed: a copy would be contiguous."""
    for name, way in _LAYOUTS.items():
        try:
            with quiet():
                change = gap(before, probe.interface.run(inputs.each(way)).output.detach())
        except Exception as problem:
            yield Finding(
                "noncontiguous-input",
                "risk",
                Sentence("the same input as {name} makes it raise {sentence}").format(
                    name=name, sentence=sentence(problem)
                ),
                "use reshape() where the input may be a view of another tensor, or call contiguous() first",
            )
            return
        if change > ROUNDING:
            yield Finding(
                "noncontiguous-input",
                "bug",
                Sentence("the same input as {name} gives another output: up to {change:.2g} of its size").format(
                    name=name, change=change
                ),
                "read inputs by index, not by memory address: no as_strided, data_ptr or set_ on them",
            )
            return


def _arguments(probe: Probe) -> Iterator[Finding]:
    """Whether inputs, masks and what else a call takes stay as they were; masks of 0 and 1 also in bool, of which
    .to(bool) makes no copy.
    """
    interface, calls, seen = probe.interface, list[tuple[dict[str, Any], dict[str, Any]]](), set[str]()
    names = list(signature(probe.module).parameters)

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        values = {**dict(zip(names, args, strict=False)), **kwargs}
        calls.append((values, {name: [x.clone() for x in _tensors(value)] for name, value in values.items()}))

    probe.module.register_forward_pre_hook(note, with_kwargs=True)
    inputs = probe.inputs() if interface.batched else probe.inputs(batch=1)
    in_bool = (dataclasses.replace(x, dtype=torch.bool) for x in interface.masks if x.form != "additive")
    for mask in (None, *interface.masks, *in_bool):
        calls.clear()
        with contextlib.suppress(DoctorError):  # this mask cannot hide a key
            options = {} if mask is None else given(interface, mask, inputs, inputs.key_length - 1)
            if isinstance(probe.attempt(inputs, given=options), Exception):  # others report whether it runs
                continue
        for values, before in calls:
            for name in (x for x in values if x not in seen):
                pairs = zip(before[name], _tensors(values[name]), strict=True)
                changed = next(((old, new) for old, new in pairs if not _same(old, new)), None)
                if changed is not None:
                    seen.add(name)
                    yield _modified(interface, name, *changed)


def _tensors(x: Any) -> list[Tensor]:
    return [y for y in (x if isinstance(x, list) else [x]) if isinstance(y, Tensor)]


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def _modified(interface: Interface, name: str, before: Tensor, after: Tensor) -> Finding:
    slots = {x for _, x in interface.way.slots}
    what = (
        Sentence("the mask {name!r}").format(name=name)
        if any(name == x.parameter for x in interface.masks)
        else repr(name)
    )
    what = "the input" if slots == {name} else what
    changed = int((before != after).sum()) if before.shape == after.shape else before.numel()
    return Finding(
        "input-modified",
        "bug",
        Sentence("the call changed {what} in place: {changed} of its {of} numbers").format(
            what=what, changed=changed, of=before.numel()
        ),
        "use operations that make a new tensor (x = x + y, masked_fill) on the caller's tensors, or clone() them first",
    )
