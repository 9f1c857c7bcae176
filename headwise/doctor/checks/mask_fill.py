"""Whether large scores can exceed the fill value of masked scores.

A finite fill such as -100 hides a key only while the allowed scores are well above it. Inputs are scaled until the
scores are large; hidden keys are then changed, which must have no effect. The size of the scores is recorded at the
softmax.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.listen import Scores, Softmaxes
from headwise.doctor.probing.masking import given
from headwise.doctor.probing.probe import REACHED, Probe, moved, rows, scaled
from headwise.errors import DoctorError

FINDINGS = ("mask-fill-too-small", "causal-leak")
SOURCES = ("flashinfer #4401", "transformers #48745")

_FACTORS = (1.0, 10.0, 100.0, 1000.0)
_ORDINARY = 1e3  # scores below this occur in practice
_SEEDS = (0, 1)
_BY_ITSELF = "its causal mask"


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    probe.rowwise(probe.inputs())
    ways = list(_ways(probe))
    filled = list(_filled(probe))
    yield from filled
    if not ways and not filled:
        raise NotApplicable("it has no working mask argument, and is not causal")
    for said, options in ways:
        for factor in _FACTORS:
            leak = max(_leak(probe, factor, seed, options) for seed in _SEEDS)
            if leak > REACHED:
                yield _finding(patient, probe, said, options, factor, leak)
                return


def _filled(probe: Probe) -> Iterator[Finding]:
    """A mask that does not hide keys, because it sets their scores to an ordinary number (1e-9 instead of -1e9)."""
    inputs = probe.inputs()
    for mask in probe.interface.masks:
        if mask.works or mask.form == "additive":
            continue
        try:
            options = given(probe.interface, mask, inputs, 1)
        except DoctorError:
            continue
        for free, masked in zip(_heard(probe, 1.0, {}), _heard(probe, 1.0, {"given": options}), strict=False):
            if free.scores.shape != masked.scores.shape:
                break
            hidden = masked.scores[free.scores != masked.scores]
            if not hidden.numel():
                continue
            fill = float(hidden.flatten()[0])
            if bool((hidden == fill).all()) and fill != 0 and fill > -_ORDINARY:  # 0: multiplied by the mask
                yield Finding(
                    "mask-fill-too-small",
                    "bug",
                    f"{mask.parameter} sets the scores that it hides to {fill:.3g}; the others range from "
                    f"{free.least():.3g} to {free.largest():.3g}, so that hidden keys keep their weight",
                    "fill with -inf or torch.finfo(scores.dtype).min",
                    where=masked.where,
                    sources=SOURCES,
                    numbers={"fill": fill, "scores": free.largest()},
                )
                return
            break


def _ways(probe: Probe) -> Iterator[tuple[str, dict[str, Any]]]:
    """Ways to hide all keys but the first from the first query that work, at least nearly, while scores are small."""
    if _causal(probe):
        yield _BY_ITSELF, {}
    inputs = probe.inputs()
    before = _leak(probe, 1.0, 0, {})
    seen: set[str] = set()
    for mask in probe.interface.masks:
        if mask.own or mask.form == "additive" or mask.parameter in seen:
            continue  # the caller chooses the numbers of an additive mask
        try:
            options = given(probe.interface, mask, inputs, *range(1, inputs.key_length))
        except DoctorError:
            continue
        if mask.works or 0 < _leak(probe, 1.0, 0, {"given": options}) < 0.05 * before:
            seen.add(mask.parameter)
            yield mask.parameter, {"given": options}


def _causal(probe: Probe) -> bool:
    """Whether it masks the future by itself."""
    if probe.interface.takes == "memory":
        return False
    influence = probe.influence(probe.square())
    return bool(influence.triu(1).amax() < 0.01 * influence.tril(-1).amax())


def _leak(probe: Probe, factor: float, seed: int, options: dict[str, Any]) -> float:
    """How far the first rows change when all keys but the first change, with inputs times `factor`."""
    inputs = probe.inputs(seed=seed)
    other = moved(inputs, slice(None), slice(1, None))
    before, after = (probe.attempt(scaled(x, factor), **options) for x in (inputs, other))
    if isinstance(before, Exception) or isinstance(after, Exception):
        return 0.0
    change = rows(before, after)[:, 0]
    change = change[change.isfinite()]  # overflow is reported by another check
    return float(change.amax()) if change.numel() else 0.0


def _finding(patient: Patient, probe: Probe, said: str, options: dict[str, Any], factor: float, leak: float) -> Finding:
    masked, free = _heard(probe, 1.0, options), _heard(probe, factor, {})
    fill = min((x.least() for x in masked), default=-math.inf)
    size = max((x.largest() for x in free), default=0.0)
    beaten = fill > -_ORDINARY if masked else factor <= 10
    if not masked and said == _BY_ITSELF and beaten:
        return Finding(
            "causal-leak",
            "bug",
            f"it masks the future by itself, and with inputs times {factor:g} a change of later tokens changes the "
            f"first output by {leak:.2g} of its size: no softmax runs, so something else is computed from all tokens",
            "compute maxima and sums of a row from its own past alone, such as the maximum that exp is stabilised with",
            patient.where,
            numbers={"factor": factor, "leak": leak},
        )
    scores = f". At the softmax masked scores are {fill:.4g}; other scores reach {size:.4g}" if masked else ""
    return Finding(
        "mask-fill-too-small",
        "bug" if beaten else "risk",
        f"with inputs times {factor:g}, keys that {said} hides change the output by {leak:.2g} of its size{scores}",
        "fill with -inf or torch.finfo(scores.dtype).min",
        where=next((x.where for x in masked if x.where is not None), None),
        sources=SOURCES,
        numbers={"factor": factor, "leak": leak, **({"fill": fill, "scores": size} if masked else {})},
    )


def _heard(probe: Probe, factor: float, options: dict[str, Any]) -> list[Scores]:
    with Softmaxes() as seen:
        probe.attempt(scaled(probe.inputs(), factor), **options)
    return seen.heard
