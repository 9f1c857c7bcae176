"""Dropout on the scores, before the softmax.

A dropped score becomes 0, which is an ordinary score, not a weight of 0.
"""

from __future__ import annotations

from collections.abc import Iterator

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotChecked, Patient
from headwise.doctor.reading.anatomy import look

FINDINGS = ("dropout-misplaced",)


def check(patient: Patient) -> Iterator[Finding]:
    if not patient.see().sites:
        raise NotChecked(patient.anatomy_problem)
    for site in look(patient, train=True).sites:
        for step in site.steps_before:
            if step.noise and step.name not in ("add", "sub", "rsub"):  # added noise, as Gumbel's, drops nothing
                yield Finding(
                    "dropout-misplaced",
                    "bug",
                    "dropout is applied to the scores, before the softmax: a dropped score becomes 0, not a weight of "
                    "0, and the others are scaled up",
                    "apply dropout to the weights, after the softmax",
                    step.where,
                )
                break
