"""A part that adds its normalised input, where the parts beside it add their input.

`x = self.norm(x)` overwrites what the residual is to be: the stream of residuals ends there. With all projections of a
part set to 0 only its residual is left: that must be the part's input, as it is in the other parts of the same block.
A block whose parts all normalise the sum (post-norm) is consistent. A block that is given alone and has several norms
must add its input too, unless its output is normalised. Where the parts are lines of one forward, each norm tells what
the stream is: what it takes, or what it gave, reaches the next norm, or the output behind the last one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.probe import ROUNDING, Probe, gap, quiet

FINDINGS = ("residual-dropped",)

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    groups = [_parts(block) for block in probe.module.modules()]
    groups = [parts for parts in groups if len(parts) > 1]
    if not groups:
        normed, kept = _in_lines(patient)
        if normed and kept:
            yield Finding(
                "residual-dropped",
                "bug",
                f"with all projections set to 0, what goes on behind {normed[0]} is its output, and behind {kept[0]} "
                "its input: the residual was overwritten by the norm",
                "keep the input: residual = x, then residual + attention(norm(x))",
                patient.where,
            )
        elif not kept:
            yield from _alone(patient, probe)
        return
    calls = _calls(probe, [part for parts in groups for part in parts.values()])
    for parts in groups:
        left = {name: left_without_projections(part, calls[part]) for name, part in parts.items() if part in calls}
        wrong = [name for name, what in left.items() if what == "normed"]
        right = [name for name, what in left.items() if what == "input"]
        if wrong and right:
            yield Finding(
                "residual-dropped",
                "bug",
                f"with its projections set to 0, {wrong[0]} gives its normalised input, and {right[0]} its input as it "
                "is: the residual was overwritten by the norm",
                "keep the input: residual = x, then residual + attention(norm(x))",
                patient.where,
            )
            return


def _in_lines(patient: Patient) -> tuple[list[str], list[str]]:
    """Of parts that are lines of one forward: the norms before them whose output goes on to the next norm or to
    the output, and those whose input goes on to the next norm.
    """
    probe = Probe(patient)
    events: list[tuple[nn.Module, Tensor, Tensor | None]] = []  # a norm, its input and output; or a layer and its input

    def note(part: nn.Module, given: tuple[Any, ...], out: Any) -> None:
        if given and isinstance(given[0], Tensor):
            events.append((part, given[0].clone(), out.clone() if isinstance(out, Tensor) else None))

    paths = {part: name for name, part in probe.module.named_modules()}
    draw = torch.Generator().manual_seed(17)
    for part in list(paths):
        if isinstance(part, (*_LAYERS, nn.MultiheadAttention)):
            part.register_forward_pre_hook(lambda part, given: note(part, given, None))
        elif "norm" in type(part).__name__.lower() and not list(part.children()):
            part.register_forward_hook(note)
        with torch.no_grad():
            for parameter in part.parameters(recurse=False):
                if isinstance(part, _LAYERS):
                    parameter.zero_()
                elif "norm" in type(part).__name__.lower():  # a norm of a norm must be another one
                    parameter.add_(0.3 * torch.randn(parameter.shape, generator=draw).to(parameter))
    out = probe.attempt(probe.inputs())
    at = [n for n, (_, x, out) in enumerate(events) if out is not None and bool(x.any())]
    normed, kept = [], []
    streams = [(n, events[n][1]) for n in at[1:]]  # what the next norm takes, or the block gives
    streams += [(len(events), out)] if isinstance(out, Tensor) else []
    for this, (following, stream) in zip(at, streams, strict=False):
        norm, x, made = events[this]
        assert made is not None
        if any(_same_numbers(made, given) for _, given, after in events[this + 1 : following] if after is None):
            if _same_numbers(x, stream) and following < len(events):
                kept.append(paths[norm])
            elif _same_numbers(made, stream) and this != at[0]:  # the first may be that of the embeddings
                normed.append(paths[norm])
    return normed, kept


def _same_numbers(a: Tensor, b: Tensor) -> bool:
    """Whether they hold the same numbers, in whatever order: [B, N, M] and [N, B, M]."""
    return a.numel() == b.numel() and gap(a.flatten().sort().values, b.flatten().sort().values) < ROUNDING


def _alone(patient: Patient, probe: Probe) -> Iterator[Finding]:
    """The same of one block: an attention or two, and two norms at least."""
    norms = sum("norm" in type(x).__name__.lower() for x in probe.module.modules())
    if not norms or patient.anatomy is None or not 1 <= len(patient.anatomy.sites) <= 2:
        raise NotApplicable("it has no block of several parts with norms")
    inputs = probe.inputs()
    probe.rowwise(inputs)
    with quiet(), torch.no_grad():  # with the weights of its norms as they are: those of 0 are noise in a probe
        spread = patient.fresh().interface.run(inputs).output.double().std(-1)
    if float(spread.std()) < 1e-3 * float(spread.mean()):
        raise NotApplicable("its output is normalised")
    with torch.no_grad():
        for layer in (x for x in probe.module.modules() if isinstance(x, _LAYERS)):
            for parameter in layer.parameters():
                parameter.zero_()
    first: list[Tensor] = []
    for layer in (x for x in probe.module.modules() if isinstance(x, _LAYERS)):
        layer.register_forward_pre_hook(lambda _, given: first.append(given[0]))
    once, twice = probe.attempt(inputs), probe.attempt(inputs.each(lambda x: 2 * x))
    if not isinstance(once, Tensor) or not isinstance(twice, Tensor) or once.shape != inputs.query.shape:
        return
    if not first or gap(first[0], first[len(first) // 2]) > ROUNDING:
        raise NotApplicable("its first projection is before its norm")
    if gap(once, twice) < ROUNDING < gap(inputs.query, once) and bool(once.any()):
        yield Finding(
            "residual-dropped",
            "bug",
            "with its projections set to 0, the block gives its normalised input, though its output is not normalised: "
            "the residual was overwritten by the norm",
            "keep the input: residual = x, then residual + attention(norm(x))",
            patient.where,
        )


def _parts(block: nn.Module) -> dict[str, nn.Module]:
    """The children of a module that are no layers of torch and have norms."""
    return {
        name: part
        for name, part in block.named_children()
        if not type(part).__module__.startswith("torch.")
        and any("norm" in type(x).__name__.lower() for x in part.modules())
    }


def _calls(probe: Probe, parts: list[nn.Module]) -> dict[nn.Module, tuple[Any, Any]]:
    """The first call of each part that was given a tensor and returned one of the same shape."""
    calls: dict[nn.Module, tuple[Any, Any]] = {}

    def keep(part: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        given = args[0] if args else None
        if isinstance(given, Tensor) and isinstance(out, Tensor) and given.shape == out.shape:
            calls.setdefault(part, (tuple(x.clone() if isinstance(x, Tensor) else x for x in args), kwargs))

    hooks = [part.register_forward_hook(keep, with_kwargs=True) for part in parts]
    probe.answers(probe.inputs())
    for hook in hooks:
        hook.remove()
    return calls


def left_without_projections(part: nn.Module, call: tuple[Any, Any]) -> str:
    """What a part gives without its projections: "input", "normed" (of any size the same), or "" for neither."""
    silent, first = copy.deepcopy(part), list[Tensor]()
    for layer in (x for x in silent.modules() if isinstance(x, _LAYERS)):
        layer.register_forward_pre_hook(lambda _, given: first.append(given[0]))
        layer.requires_grad_(False)
        for parameter in layer.parameters():
            parameter.zero_()
    (x, *args), kwargs = call
    try:
        with quiet(), torch.no_grad():
            once, twice, other = (silent(y, *args, **kwargs) for y in (x, 2 * x, x.flip(1)))
    except Exception:
        return ""
    if gap(x, once) < ROUNDING:
        return "input"
    before = bool(first) and gap(first[0], first[len(first) // 3]) < ROUNDING  # the norm is before the projections
    return "normed" if before and gap(once, twice) < ROUNDING < gap(once, other) else ""
