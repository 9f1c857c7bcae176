"""Dropout on the scores, before the softmax.

A dropped score becomes 0, which is an ordinary score, not a weight of 0.
"""

from __future__ import annotations

from collections.abc import Iterator

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotChecked, Patient
from headwise.doctor.reading import marks
from headwise.doctor.reading.anatomy import look
from headwise.doctor.reading.events import Step
from headwise.doctor.reading.site import Site

FINDINGS = ("dropout-misplaced",)


def check(patient: Patient) -> Iterator[Finding]:
    if not patient.see().sites:
        raise NotChecked(patient.anatomy_problem)
    sites = look(patient, train=True).sites
    for site in sites:
        for step in site.steps_before:
            if any(_on_weights(step, other) for other in sites if other is not site):
                continue
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


def _on_weights(step: Step, site: Site) -> bool:
    """Whether a step comes after the softmax of another site, whose scores go into these too."""
    numbers = (marks.seed_of(x[x >= 0]).unique().tolist() for x in (step.source, site.softmax.source))
    return step.order > site.softmax.order and bool(set.intersection(*map(set, numbers)))
