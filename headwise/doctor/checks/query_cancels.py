"""Queries that change no weight: they add one number to all scores of a row, which the softmax takes away again.

`v · (tanh(W s) + U h)` in the place of `v · tanh(W s + U h)` (Bahdanau et al. 2015, equation 6): without the tanh of
the sum, the query's part is the same for every key. Static attention of graphs has the same reason (Brody et al. 2022).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.listen import Softmaxes
from headwise.doctor.probing.probe import ROUNDING, Probe, moved

FINDINGS = ("query-cancels",)


def check(patient: Patient) -> Iterator[Finding]:
    if patient.interface.takes == "self":
        raise NotApplicable("its queries and keys are one sequence")
    probe = Probe(patient)
    inputs = probe.inputs()
    probe.answers(inputs)
    others = dataclasses.replace(inputs, query=moved(inputs, slice(None), queries=True).query)
    with Softmaxes() as before:
        probe.run(inputs)
    with Softmaxes() as after:
        probe.run(others)
    for one, other in zip(before.heard, after.heard, strict=False):
        if one.scores.shape != other.scores.shape or one.scores.shape[one.dim] < 2:
            continue
        change = (other.scores - one.scores).double()
        change = torch.where(change.isfinite(), change, 0.0)
        seen = one.scores.isfinite()
        mean = change.sum(one.dim, keepdim=True) / seen.sum(one.dim, keepdim=True).clamp(min=1)
        apart = ((change - mean) * seen).abs().max()
        most = float(change.abs().max())
        if float(apart) < ROUNDING * most:
            yield Finding(
                "query-cancels",
                "bug",
                f"another query changes all scores of a row by the same number (up to {most:.2g}), "
                "which the softmax takes away: the weights do not depend on the query",
                "let the query meet each key before the scores are summed: v · tanh(W q + U k), or q · k",
                one.where,
            )
            return
