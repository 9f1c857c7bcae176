"""Whether the call leaves its arguments unchanged: inputs and masks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.finding import Finding
from headwise.doctor.patient import Patient
from headwise.doctor.probing.masking import given
from headwise.doctor.probing.probe import Probe, quiet

FINDINGS = ("input-modified",)


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    inputs = probe.inputs()
    kept_inputs = inputs.each(lambda x: x.clone())
    with quiet():
        probe.interface.run(inputs)
    for name, before in kept_inputs.tensors().items():
        now = getattr(inputs, name)
        if not _same(before, now):
            yield _finding(f"the {name} that was passed" if probe.crosses else "the input", before, now)
    yield from _beside(probe)
    modified: set[str] = set()
    masks = probe.interface.masks  # and one of 0 and 1 also in bool, of which .to(bool) makes no copy
    for mask in (*masks, *(dataclasses.replace(x, dtype=torch.bool) for x in masks if x.form != "additive")):
        if mask.parameter in modified:
            continue
        inputs = probe.inputs()
        try:
            options = given(probe.interface, mask, inputs, inputs.key_length - 1)
            kept = options[mask.parameter].clone()
            with quiet():
                probe.interface.run(inputs, given=options)
        except Exception:  # other checks report whether it runs with this mask
            continue
        if not _same(kept, options[mask.parameter]):
            modified.add(mask.parameter)
            yield _finding(f"the mask {mask.parameter!r}", kept, options[mask.parameter])
    yield from _marked(probe, modified | {mask.parameter for mask in probe.interface.masks})


def _beside(probe: Probe) -> Iterator[Finding]:
    """The other tensors that a call needs: a bias, positions."""
    way = probe.interface.way
    masks = {mask.parameter for mask in probe.interface.masks}
    for name, make in way.extras:
        inputs = probe.inputs()
        value = make(way.sizes(inputs))
        if not isinstance(value, Tensor) or name in masks:
            continue
        value = value.clone()
        kept = value.clone()
        try:
            with quiet():
                probe.interface.run(inputs, given={name: value})
        except Exception:  # a mask, whose form is another one
            continue
        if not _same(kept, value):
            yield _finding(repr(name), kept, value)


def _marked(probe: Probe, known: set[str]) -> Iterator[Finding]:
    """Marks of tokens [B, N] that a call may leave out, and that are not known as masks: visited, unavailable."""
    way = probe.interface.way
    roles = probe.interface.roles
    taken = known | {x for _, x in way.slots} | {x for x, _ in way.extras}
    for name in sorted(name for name, role in roles.items() if role in ("unknown", "mask") and name not in taken):
        inputs = probe.inputs()
        marks = torch.zeros(inputs.query.shape[:2], dtype=torch.bool)
        try:
            with quiet():
                probe.interface.run(inputs, given={name: marks})
        except Exception:  # it does not take these marks
            continue
        if bool(marks.any()):
            yield _finding(repr(name), torch.zeros_like(marks), marks)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def _finding(what: str, before: Tensor, after: Tensor) -> Finding:
    if before.shape != after.shape:
        evidence = f"after the call {what} has shape {list(after.shape)}; before, it was {list(before.shape)}"
        changed, of = before.numel(), before.numel()
    else:
        changed, of = int((before != after).sum()), before.numel()
        evidence = f"the call changed {what} in place: {changed} of its {of} numbers"
    return Finding(
        "input-modified",
        "bug",
        evidence,
        "use operations that make a new tensor (x = x + y, masked_fill) on the caller's tensors, or clone() them first",
        numbers={"changed": changed, "of": of},
    )
