"""Every mask argument acts, also beside another one, and on its own keys.

A mask that hides a key must change the output, compared with one that hides nothing. That it acts alike on every path
of the code is a law of its own (modes.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from headwise.doctor.calling.interface import Inputs
from headwise.doctor.calling.mask_input import MaskInput
from headwise.doctor.calling.way import tensors_in
from headwise.doctor.finding import Finding, Severity
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.masking import FORMS, about_memory, each, every_form, given
from headwise.doctor.probing.probe import REACHED, Probe, gap
from headwise.language import Sentence

FINDINGS = ("mask-ignored", "cross-mask")

_N = 5


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    inputs = probe.inputs()
    probe.answers(inputs)
    masks = each(probe.interface.masks)
    yield from _of_the_queries(probe)
    if not masks:
        raise NotApplicable("it takes no mask")
    acting = []
    for mask in masks:
        change = _change(probe, inputs, mask)
        if change is not None and change > REACHED:
            acting.append(mask)
        elif change is not None and not _excused(probe, inputs, mask, masks):
            own = next(patient.module.parameters(), None) is not None  # else its callers choose what it is passed
            yield _ignored(
                Sentence(
                    "{parameter} changes nothing: a mask that hides a key gives the same output as one that hides none"
                ).format(parameter=mask.parameter),
                "bug" if own else "risk",
            )
    yield from _together(probe, inputs, [mask for mask in acting if mask.works])


def _change(
    probe: Probe, inputs: Inputs, mask: MaskInput, more: Mapping[str, Any] = MappingProxyType({})
) -> float | None:
    """How far the output changes when the mask hides a key; None if it cannot be called this way."""
    try:
        ways = [{**more, **given(probe.interface, mask, inputs, *keys)} for keys in ((), _keys(inputs, mask))]
        return gap(*(probe.output(inputs, given=options) for options in ways))
    except Exception:
        return None


def _keys(inputs: Inputs, mask: MaskInput, key: int = 1) -> tuple[int, ...]:
    """The keys to hide: a key that causal queries also attend to; the second half if the mask counts lengths, which
    may be those of samples.
    """
    n = inputs.key_length
    return tuple(range(n // 2, n)) if mask.shape == "B" else (key,)


def _excused(probe: Probe, inputs: Inputs, mask: MaskInput, masks: list[MaskInput]) -> bool:
    """Whether a mask that changes nothing is for what is not there, acts beside another, or on another output."""
    others = [other for other in masks if other is not mask and other.works]
    about = about_memory(probe.interface, mask.parameter)
    of_memory = any(about_memory(probe.interface, other.parameter) for other in others)
    if probe.interface.takes == "self":
        elsewhere = bool(about)
    else:
        elsewhere = about is False or (about is None and probe.interface.takes == "memory" and of_memory)
    if others and elsewhere:
        return True
    beside = [_change(probe, inputs, mask, given(probe.interface, other, inputs)) for other in others]
    if any(change is None or change > REACHED for change in beside):
        return True
    runs = [probe.run(inputs, given=given(probe.interface, mask, inputs, *x)) for x in ((), _keys(inputs, mask))]
    shape = (len(inputs.query), inputs.key_length, runs[0].output.shape[-1])
    pairs = zip(*([x for _, x in tensors_in(run.raw)] for run in runs), strict=False)
    return any(gap(a, b) > REACHED for a, b in pairs if a.shape == b.shape == shape)  # attention both ways


def _together(probe: Probe, inputs: Inputs, masks: list[MaskInput]) -> Iterator[Finding]:
    """Two masks at once: cells, and keys."""
    for mask in masks:
        for other in masks:
            differ = {mask.what, other.what} == {"cells", "keys"} and mask.own == other.own
            about = about_memory(probe.interface, mask.parameter) == about_memory(probe.interface, other.parameter)
            if not differ or not about:
                continue
            hidden = given(probe.interface, other, inputs, *_keys(inputs, other, 2))
            found = _change(probe, inputs, mask, hidden)
            if found is not None and found <= REACHED:
                yield _ignored(
                    Sentence("{mask} has no effect if {other} is passed too").format(
                        mask=mask.parameter, other=other.parameter
                    )
                )


def _ignored(evidence: str, severity: Severity = "bug") -> Finding:
    fix = "apply the mask before the softmax on every path, or raise an error if it is not supported"
    return Finding("mask-ignored", severity, evidence, fix)


def _of_the_queries(probe: Probe) -> Iterator[Finding]:
    """A mask of the queries' own tokens that hides those of a memory: both get one length, so that it fits."""
    interface = probe.interface
    names = [name for name, role in interface.roles.items() if "mask" in name.lower() or role == "padding"]
    if interface.takes != "memory" or not names or interface.length == 1:
        return
    inputs = probe.square(length=_N)
    of_memory = [name for name in names if about_memory(interface, name)]
    shown: dict[str, Any] = {}
    for mask in each(interface.masks):
        if mask.parameter in of_memory and mask.works:
            shown |= given(interface, mask, inputs)
    for name in names:
        about, known = about_memory(interface, name), [m for m in interface.masks if m.parameter == name and m.works]
        # Its cells may be known to be those of queries and of as many keys as the memory has.
        of_both = probe.rectangular and bool(known) and known[0].what == "cells" and not known[0].own
        if about or (about is None and (not of_memory or of_both)):
            continue
        for value in every_form(inputs, dict.fromkeys([(m.form, m.dtype) for m in known] or FORMS)):
            try:
                first, second = probe.influence(inputs, given={**shown, name: value})[:, 1:3].amax(0).tolist()
            except NotChecked:  # it is not passed in this form
                continue
            if first <= REACHED < second:
                yield Finding(
                    "cross-mask",
                    "bug",
                    Sentence(
                        "{name}, the mask of the queries' own tokens, hides keys of the memory: with token 1 masked "
                        "in it, memory token 1 no longer changes any row, while memory token 2 still does (by "
                        "{change:.2g} of the output's size)"
                    ).format(name=name, change=second),
                    "pass cross-attention the padding mask of the memory, of the memory's length: "
                    "memory_key_padding_mask",
                )
                break
