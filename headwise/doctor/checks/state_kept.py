"""Whether an earlier call changes a later one: keys, a mask or a table that the module keeps, a dropout that it ends.

Code that keeps what it has built often asks only whether it is there, or whether its shape fits. So the second call
gets other numbers, another mask, another length or another batch size, or the first is one in train mode; a copy that
was not called before must agree. The copies are made of the module as it was given: the trials that found out how to
call it were calls, too.
"""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from headwise.doctor.calling import names, sizes
from headwise.doctor.calling.copying import copied
from headwise.doctor.calling.interface import Inputs
from headwise.doctor.calling.signature import signature
from headwise.doctor.calling.token_ids import is_on_embeddings
from headwise.doctor.calling.way import noise
from headwise.doctor.finding import Finding
from headwise.doctor.patient import Patient
from headwise.doctor.probing.masking import given
from headwise.doctor.probing.padded_ids import answers, padded_from
from headwise.doctor.probing.probe import ROUNDING, Probe, gap, quiet, sentence
from headwise.errors import DoctorError

FINDINGS = ("state-kept", "train-eval-differ")

Call = tuple[Inputs, dict[str, Any]]
_TRAINED = "the same input, which was one in train mode,"
_SWITCHED_ON = "=True,"  # how the words for a call end whose first one had a cache
_LENGTH, _LONGEST = 6, 600  # tokens of a call
_PARTS = 60  # modules with more parts are not examined part by part
_RESETS = re.compile(
    r"^(reset|clear|flush|empty|init)_?\w*(cache|state|memory|buffer|kv|mem)"
    r"|^(reset|(start|begin|new)(_(sequence|utterance|segment|episode|session|batch))?)$",
    re.IGNORECASE,
)
_USES_CACHE = re.compile(r"^use_\w*cache$|^incremental$")
_COUNTED = re.compile(r"prefix|prompt|len(gth)?$|^num_|_tokens$")


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient.as_given())
    inputs = probe.inputs()
    before = probe.answers(inputs)
    if gap(before, probe.output(inputs)) > 0:
        return  # the same input twice: checks/determinism.py
    found = (
        _layer(patient, inputs)
        or _later_call(patient, probe, inputs)
        or _other_padding(patient)
        or _after_reset(patient, probe, inputs)
    )
    if found is not None:
        yield found
    else:
        yield from _switched_off(patient, inputs)


def _later_call(patient: Patient, probe: Probe, inputs: Inputs) -> Finding | None:
    for what, first, second in _pairs(probe, inputs):
        used, unused = Probe(patient.as_given()), Probe(patient.as_given())
        used.module.train(what == _TRAINED)
        if isinstance(used.attempt(first[0], given=first[1]), Exception):
            continue
        used.module.eval()
        expected = unused.attempt(second[0], given=second[1])
        if isinstance(expected, Exception):
            continue
        out = used.attempt(second[0], given=second[1])
        change = float("inf") if isinstance(out, Exception) else gap(expected, out)
        if change <= ROUNDING:
            continue
        return _kept(probe.module, what, out if isinstance(out, Exception) else change)
    return None


def _other_padding(patient: Patient) -> Finding | None:
    """The same for ids: the first have padding at their end."""
    made = padded_from(patient, slice(-2, None), _LENGTH)
    if made is None:
        return None
    ids, padded, _ = made
    after, alone = answers(patient, padded, ids), answers(patient, ids)
    if after is None or alone is None:
        return None
    change = gap(alone[0], after[1])
    return _kept(patient.original, "other padding", change) if change > ROUNDING else None


def _after_reset(patient: Patient, probe: Probe, inputs: Inputs) -> Finding | None:
    """The method that is to forget what calls with a cache keep, and other numbers after it."""
    flag = next((x for x in probe.interface.flags if re.search(r"cache|incremental|stream", x)), None)
    method = next((x for x in dir(type(probe.module)) if _RESETS.search(x) and x not in dir(nn.Module)), None)
    if flag is None or method is None:
        return None
    used, unused, given_ = Probe(patient.as_given()), Probe(patient.as_given()), {flag: True}
    try:
        for each in (used, unused):
            getattr(each.module, method)()
        used.output(inputs, given=given_)
        getattr(used.module, method)()
        other = probe.inputs(seed=1)
        change = gap(unused.output(other, given=given_), used.output(other, given=given_))
    except Exception:  # it takes arguments, or needs something else before
        return None
    if change <= ROUNDING:
        return None
    return Finding(
        "state-kept",
        "bug",
        f"after a call with {flag}=True and {method}(), another one differs by {change:.2g} of the output's size from "
        f"one of a new module: {method}() does not clear all that calls keep",
        f"clear every cache in {method}(), those of all parts",
        numbers={"change": change},
    )


def _kept(module: nn.Module, what: str, change: float | Exception) -> Finding:
    """The finding about a later call with `what`: how far it is from the same call alone, or what it raises."""
    if isinstance(change, Exception):
        so = f"raises {sentence(change)}"
    else:
        so = f"differs by {change:.2g} of the output's size from the same call alone"
    resets = "" if what.endswith(_SWITCHED_ON) else _resets(module)  # a cache that is not to be used is not read
    return Finding(
        "state-kept",
        "risk" if resets else "bug",
        f"after a call, one with {what} {so}: the module keeps something of its first call"
        + (f"; {resets} may be meant to be called between them" if resets else ""),
        "keep nothing that depends on the inputs, or keep it by everything that it depends on: length, batch "
        "size, contents of the mask, dtype and device",
        numbers={} if isinstance(change, Exception) else {"change": change},
    )


def _layer(patient: Patient, inputs: Inputs) -> Finding | None:
    """A part of the module that gives something else in it than alone: parts share something that one of them made."""
    probe, alone = Probe(patient.as_given()), Probe(patient.as_given())
    takes_embeddings = is_on_embeddings(patient.module)
    given_to: dict[str, Any] = {}
    outs: dict[str, Tensor] = {}

    def before(name: str) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
            with contextlib.suppress(Exception):
                given_to.setdefault(name, copy.deepcopy((args, kwargs)))

        return hook

    def after(name: str) -> Any:
        def hook(_: nn.Module, args: Any, out: Any) -> None:
            if isinstance(out, Tensor) and out.is_floating_point():
                outs.setdefault(name, out.detach().clone())  # the next part may write to it

        return hook

    parts = [(n, x) for n, x in probe.module.named_modules() if n and not type(x).__module__.startswith("torch.")]
    if len(parts) < 2 or len(parts) > _PARTS:
        return None
    hooks = [part.register_forward_pre_hook(before(name), with_kwargs=True) for name, part in parts]
    hooks += [part.register_forward_hook(after(name)) for name, part in parts]
    problem = probe.attempt(inputs)
    for hook in hooks:
        hook.remove()
    if isinstance(problem, Exception):
        return None
    for name, out in outs.items():
        if name not in given_to:
            continue
        args, kwargs = given_to[name]
        if takes_embeddings and any(isinstance(x, Tensor) and x.dtype in (torch.int64, torch.int32) for x in args):
            continue  # a table of tokens: within the module the doctor replaces what it gives
        try:
            twin = copied(alone.module.get_submodule(name))
            with quiet(), torch.no_grad():
                change = gap(out, twin(*args, **kwargs))
        except Exception:
            continue
        if change > ROUNDING:
            return Finding(
                "state-kept",
                "bug",
                f"{name} with the same input gives another output alone than inside of the module: they differ by "
                f"{change:.2g} of its size. It uses what another part has left, a mask or a table for example",
                "keep what is shared by everything that it depends on: length, window, dtype and device",
                numbers={"change": change},
            )
    return None


def _pairs(probe: Probe, inputs: Inputs) -> Iterator[tuple[str, Call, Call]]:
    """Two calls that differ in one thing, and its name."""
    yield "other numbers", (inputs, {}), (probe.inputs(seed=1), {})
    masks = dict.fromkeys(m.parameter for m in probe.interface.masks if m.works)
    for name in masks:
        mask = next(m for m in probe.interface.masks if m.parameter == name and m.works)
        keys = (inputs.key_length - 1, inputs.key_length - 2) if mask.shape == "B" else (1, 2)
        try:
            hidden = [given(probe.interface, mask, inputs, *keys[: i + 1]) for i in range(2)]
        except DoctorError:
            continue
        yield f"another {name}", (inputs, hidden[0]), (inputs, hidden[1])
        yield f"another {name} after one without it", (inputs, {}), (inputs, hidden[0])
    yield from _other_sequences(probe, inputs)
    for name, value in _options(probe.module):
        yield f"no {name}, when the first had {name}={value},", (inputs, {name: value}), (inputs, {})
    if probe.interface.length is None:
        short, long = probe.inputs(length=4), probe.inputs(length=9)
        yield "more tokens", (short, {}), (long, {})
        yield "fewer tokens", (long, {}), (short, {})
        few = probe.inputs(batch=1, length=4)
        for stated in _stated_lengths(probe.module):
            yield (
                f"4 tokens, when the first had {stated + 1},",
                (probe.inputs(batch=1, length=stated + 1), {}),
                (few, {}),
            )
    if probe.interface.batched:
        yield "another batch size", (inputs, {}), (probe.inputs(batch=2), {})
    if not any(_counts(x) for x in probe.module.modules()):
        yield _TRAINED, (inputs, {}), (inputs, {})


def _options(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Options of forward that a call may leave out, with another value: a cache, and how many tokens are a prefix."""
    for name, x in signature(module).parameters.items():
        if x.default is False and _USES_CACHE.search(name):
            yield name, True
        elif type(x.default) is int and x.default == 0 and _COUNTED.search(name):
            yield name, 2


def _counts(part: nn.Module) -> bool:
    """Whether it is a layer of torch that is to change its buffers in train mode: a batch norm, a spectral norm."""
    return type(part).__module__.startswith("torch.nn.") and next(part.buffers(recurse=False), None) is not None


def _other_sequences(probe: Probe, inputs: Inputs) -> Iterator[tuple[str, Call, Call]]:
    """Other numbers in a sequence [B, N, M] beside the input. Where a module keeps what it once made of its memory, the
    memory looks like an argument without effect.
    """
    way = probe.interface.way
    for name, make in way.extras:
        x = make(way.sizes(inputs))
        if (
            isinstance(x, Tensor)
            and x.ndim == 3
            and x.is_floating_point()
            and "mask" not in name
            and "bias" not in name
        ):
            other = noise(*x.shape, seed=83, dtype=x.dtype, device=x.device)
            yield f"another {name}", (inputs, {name: x}), (inputs, {name: other})


def _stated_lengths(module: nn.Module) -> list[int]:
    """The shortest and the longest length that it is made for; one token more may change its tables for good."""
    tables = [n for x in module.buffers() for n in x.shape[-2:]]
    found = sorted({n for n in (*sizes.find(module, names.LENGTHS), *tables) if 9 <= n <= _LONGEST})
    return list(dict.fromkeys((*found[:1], *found[-1:])))


def _resets(module: nn.Module) -> str:
    """A method that is there to forget."""
    for part in module.modules():
        for name in dir(type(part)):
            if _RESETS.search(name) and name not in dir(nn.Module) and "parameters" not in name:
                return f"{name}()"
    return ""


def _switched_off(patient: Patient, inputs: Inputs) -> Iterator[Finding]:
    """Whether one call in eval mode ends the dropout of train mode."""
    fresh, used = Probe(patient.as_given()), Probe(patient.as_given())
    used.attempt(inputs)
    random = []
    for probe in (fresh, used):
        probe.module.train()
        outs = [probe.attempt(inputs, seed=seed) for seed in (0, 1)]
        if any(isinstance(x, Exception) for x in outs):
            return
        random.append(gap(*outs) > 0)  # type: ignore[arg-type]
    if random == [True, False]:
        yield Finding(
            "train-eval-differ",
            "bug",
            "in train mode the output is random, as dropout makes it; after one call in eval mode it no longer is: "
            "that call changed the module for good",
            "choose the probability in each call (p if self.training else 0), and leave the attribute as it is",
        )
