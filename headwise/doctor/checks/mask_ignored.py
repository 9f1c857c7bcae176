"""Whether every mask argument has an effect in every mode: in training, with gradients, with each flag, with others.

A mask that hides key 1 must change the output, compared with one that hides nothing. Code with several paths (dropout
or not, weights returned or not) often forgets the mask in one of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor

from headwise.doctor.calling.interface import Inputs
from headwise.doctor.calling.mask_input import MaskInput
from headwise.doctor.calling.names import STARTS
from headwise.doctor.calling.way import tensors_in
from headwise.doctor.finding import Finding, Severity
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.listen import Dice
from headwise.doctor.probing.masking import about_memory, given
from headwise.doctor.probing.probe import REACHED, Probe, gap, moved, quiet
from headwise.doctor.reading.documents import documents

FINDINGS = ("mask-ignored",)


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    inputs = probe.inputs()
    probe.answers(inputs)
    masks = _one_each(probe.interface.masks)
    if not masks:
        raise NotApplicable("it takes no mask")
    acting = []
    for mask in masks:
        change = _change(probe, inputs, mask)
        if change is None:
            continue
        if change > REACHED:
            acting.append((mask, change))
        elif not (
            _elsewhere(probe, mask, masks)
            or _acts_beside(probe, inputs, mask, masks)
            or _on_another_output(probe, inputs, mask)
            or _of_a_signal(probe, inputs, mask)
        ):
            severity = _replaced(patient, inputs, mask)
            unless = "" if severity == "bug" else ", unless its causal mask is switched off"
            if _by_starts(patient):
                severity = patient.severity("mask-ignored: beside starts of sequences", severity)
            yield _finding(
                f"{mask.parameter} changes nothing: a mask that hides a key gives the same output as one that hides "
                f"none{unless}",
                severity=severity,
            )
    for mask, change in acting:
        yield from _modes(probe, inputs, mask, change)
    yield from _together(probe, inputs, [mask for mask, _ in acting])


def _by_starts(patient: Patient) -> bool:
    """Whether it requires the starts of its sequences."""
    return any(STARTS.match(name.lower()) for name, _ in patient.interface.way.extras)


def _one_each(masks: tuple[MaskInput, ...]) -> list[MaskInput]:
    """The best form of each argument, and the best form of another kind (cells or keys)."""
    found: dict[tuple[str, str], MaskInput] = {}
    for mask in masks:
        found.setdefault((mask.parameter, mask.what), mask)
    best: dict[str, MaskInput] = {}
    for (parameter, _), mask in found.items():
        if parameter not in best or (mask.works and not best[parameter].works):
            best[parameter] = mask
    return list(best.values())


def _elsewhere(probe: Probe, mask: MaskInput, masks: list[MaskInput]) -> bool:
    """Whether it masks something that is not there, such as a memory in self-attention."""
    others = [other for other in masks if other is not mask and other.works]
    about = about_memory(probe.interface, mask.parameter)
    if probe.interface.takes == "self":
        return bool(others) and bool(about)
    of_memory = probe.interface.takes == "memory" and any(
        about_memory(probe.interface, other.parameter) for other in others
    )
    return bool(others) and (about is False or (about is None and of_memory))


def _acts_beside(probe: Probe, inputs: Inputs, mask: MaskInput, masks: list[MaskInput]) -> bool:
    """Whether it acts, or has another shape than was thought, once another mask is passed that hides nothing."""
    others = [other for other in masks if other is not mask and other.works]
    changes = [_change(probe, inputs, mask, more=given(probe.interface, other, inputs)) for other in others]
    return any(change is None or change > REACHED for change in changes)


def _of_a_signal(probe: Probe, inputs: Inputs, mask: MaskInput) -> bool:
    """Whether it acts on half of the samples of a signal: one of them makes no frame."""
    if probe.interface.way.layout != "BN":
        return False
    half = range(inputs.key_length // 2, inputs.key_length)
    before, after = (
        probe.attempt(inputs, given=given(probe.interface, mask, inputs, *hidden)) for hidden in (range(0), half)
    )
    return isinstance(before, Tensor) and isinstance(after, Tensor) and gap(before, after) > REACHED


def _change(
    probe: Probe,
    inputs: Inputs,
    mask: MaskInput,
    *,
    train: bool = False,
    grad: bool = False,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> float | None:
    """How far the output changes when the mask hides a key; None if it cannot be called this way."""
    outs = []
    probe.module.train(train)
    try:
        for keys in ((), (_key(inputs, mask),)):
            with quiet(), Dice(still=True):
                options = {**more, **given(probe.interface, mask, inputs, *keys)}
                outs.append(probe.interface.run(inputs, grad=grad, given=options).output.detach())
    except Exception:
        return None
    finally:
        probe.module.eval()
    return gap(*outs)


def _on_another_output(probe: Probe, inputs: Inputs, mask: MaskInput) -> bool:
    """Whether it changes another output that is returned beside the one of the queries, as in attention both ways."""
    masks = (given(probe.interface, mask, inputs, *keys) for keys in ((), (_key(inputs, mask),)))
    runs = [probe.run(inputs, given=x) for x in masks]
    width = runs[0].output.shape[-1]
    pairs = zip(*([x for _, x in tensors_in(run.raw)] for run in runs), strict=False)
    beside = [(a, b) for a, b in pairs if a.shape == b.shape == (len(a), inputs.key_length, width)]
    return any(gap(a, b) > REACHED for a, b in beside)


def _key(inputs: Inputs, mask: MaskInput) -> int:
    """The key to hide: the last one if the mask counts lengths, else one that causal queries also attend to."""
    return inputs.key_length - 1 if mask.shape == "B" else 1


def _modes(probe: Probe, inputs: Inputs, mask: MaskInput, change: float) -> Iterator[Finding]:
    modes: dict[str, dict[str, Any]] = {"in train mode": {"train": True}, "with gradients enabled": {"grad": True}}
    for flag, default in probe.interface.flags.items():
        causal = probe.interface.roles.get(flag) == "causal" or "causal" in flag
        if not (causal and mask.what == "cells"):  # is_causal may describe the mask
            modes[f"with {flag}={not default}"] = {"more": {flag: not default}}
    for name, options in modes.items():
        found = _change(probe, inputs, mask, **options)
        if found is not None and found <= REACHED and not _without_keys(probe, inputs, mask, options):
            usual = "in eval mode" if name == "in train mode" else "otherwise"
            yield _finding(
                f"{mask.parameter} has no effect {name}; {usual} hiding a key changes the output by {change:.2g} of "
                "its size",
                {"change": change},
                severity="bug" if mask.works else "risk",  # else of what is masked nothing is known
            )


def _without_keys(probe: Probe, inputs: Inputs, mask: MaskInput, options: dict[str, Any]) -> bool:
    """Whether in this mode the key does not matter, masked or not: a flag that leaves out the memory, for example."""
    if "more" not in options:
        return False
    before = probe.attempt(inputs, given=options["more"])
    after = probe.attempt(moved(inputs, slice(None), _key(inputs, mask)), given=options["more"])
    return isinstance(before, Tensor) and isinstance(after, Tensor) and gap(before, after) <= REACHED


def _together(probe: Probe, inputs: Inputs, masks: list[MaskInput]) -> Iterator[Finding]:
    """Two masks at once: cells, and keys."""
    for mask in masks:
        for other in masks:
            differ = {mask.what, other.what} == {"cells", "keys"} and mask.own == other.own
            about = about_memory(probe.interface, mask.parameter) == about_memory(probe.interface, other.parameter)
            if mask.parameter == other.parameter or not differ or not about:
                continue
            last = inputs.key_length - 1
            hidden = given(probe.interface, other, inputs, last if other.shape == "B" else 2)
            found = _change(probe, inputs, mask, more=hidden)
            if found is not None and found <= REACHED:
                yield _finding(f"{mask.parameter} has no effect if {other.parameter} is passed too")


def _replaced(patient: Patient, inputs: Inputs, mask: MaskInput) -> Severity:
    """A bug, unless the causal mask of the module takes the place of this one, and that is documented (a note), or the
    module is an operator without parameters, whose callers choose one of the two (a risk).
    """
    said = any(re.search(rf"{mask.parameter}\W+(is|are)\W+ignored", text) for text in documents(patient.module))
    if not said and next(patient.module.parameters(), None) is not None:
        return "bug"
    other = Probe(patient)
    for part in other.module.modules():
        for name, value in list(vars(part).items()):
            if value is True and "causal" in name:
                setattr(part, name, False)
    change = _change(other, inputs, mask)
    if change is None or change <= REACHED:
        return "bug"
    return "note" if said else "risk"


def _finding(evidence: str, numbers: dict[str, float] | None = None, severity: Severity = "bug") -> Finding:
    return Finding(
        "mask-ignored",
        severity,
        evidence,
        "apply the mask before the softmax on every path, or raise an error if it is not supported",
        numbers=numbers or {},
    )
