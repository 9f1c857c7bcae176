"""No score beats the fill of a masked one: with inputs of any size, what is hidden has no effect.

A finite fill such as -100 hides a key only while the allowed scores are well above it. Inputs are scaled until the
scores are large; hidden keys are then changed. The size of the scores is recorded at the softmax.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.listen import Scores, Softmaxes
from headwise.doctor.probing.masking import each, given
from headwise.doctor.probing.probe import REACHED, Probe, moved, rows, scaled
from headwise.language import Sentence

FINDINGS = ("mask-fill-too-small",)

_FACTORS = (1.0, 10.0, 100.0, 1000.0)


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    probe.rowwise(probe.inputs())
    ways = list(_ways(probe))
    if not ways:
        raise NotApplicable("it has no working mask argument, and is not causal")
    for said, options in ways:
        for factor in _FACTORS:
            leak = max(_leak(probe, factor, seed, options) for seed in (0, 1))
            masked, free = _heard(probe, 1.0, options), _heard(probe, factor, {})
            if leak <= REACHED or not (masked or patient.has_softmax):  # without a softmax nothing is filled
                continue
            fill = min((float(x.scores.amin()) for x in masked), default=None)
            size = max((float(x.scores.nan_to_num(0, 0, 0).abs().amax()) for x in free), default=0.0)
            at = Sentence(". At the softmax masked scores are {fill:.4g}; other scores reach {scores:.4g}")
            more = "" if fill is None else at.format(fill=fill, scores=size)
            yield Finding(
                "mask-fill-too-small",
                "bug" if factor == 1 else "risk",  # Swin's own -100 serves it well
                Sentence(
                    "with inputs times {factor:g}, keys that {mask} hides change the output by {leak:.2g} of its "
                    "size{more}"
                ).format(factor=factor, mask=said, leak=leak, more=more),
                "fill with -inf or torch.finfo(scores.dtype).min",
                where=next((x.where for x in masked if x.where is not None), None),
                sources=("flashinfer #4401", "transformers #48745"),
            )
            return


def _ways(probe: Probe) -> Iterator[tuple[str, dict[str, Any]]]:
    """Ways to hide all keys but the first from the first query that work, at least nearly, while scores are small."""
    if probe.interface.takes != "memory":
        influence = probe.influence(probe.square())
        earlier = influence[influence.tril(-1) > REACHED]
        if len(earlier) and influence.triu(1).amax() < 0.01 * earlier.amin():
            yield "its causal mask", {}
    inputs = probe.inputs()
    before = _leak(probe, 1.0, 0, {})
    for mask in each(probe.interface.masks):
        if mask.own or mask.form == "additive":
            continue  # the caller chooses the numbers of an additive mask
        options = given(probe.interface, mask, inputs, *range(1, inputs.key_length))
        if mask.works or 0 < _leak(probe, 1.0, 0, {"given": options}) < 0.05 * before:
            yield mask.parameter, {"given": options}


def _leak(probe: Probe, factor: float, seed: int, options: dict[str, Any]) -> float:
    """How far the first rows change when all keys but the first change, with inputs times `factor`."""
    inputs = probe.inputs(seed=seed)
    other = moved(inputs, slice(None), slice(1, None))
    before, after = (probe.attempt(scaled(x, factor), **options) for x in (inputs, other))
    if isinstance(before, Exception) or isinstance(after, Exception):
        return 0.0
    change = rows(before, after)[:, 0]
    return max((x for x in change.tolist() if math.isfinite(x)), default=0.0)  # another check reports overflow


def _heard(probe: Probe, factor: float, options: dict[str, Any]) -> list[Scores]:
    with Softmaxes() as seen:
        probe.attempt(scaled(probe.inputs(), factor), **options)
    return seen.heard
