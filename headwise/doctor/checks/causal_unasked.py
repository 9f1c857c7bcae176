"""A causal mask in a module that says it has none: an encoder whose tokens do not see what follows them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.reading.scale import FORBIDDEN
from headwise.doctor.reading.site import Site

FINDINGS = ("causal-unasked",)

_SAYS = re.compile(
    r"\bbi-?directional|\bnon-?causal\b|\bnot causal\b|attends? to (all|every) (other )?(tokens?|positions?)", re.I
)


def check(patient: Patient) -> Iterator[Finding]:
    said = _said(patient)
    claim = patient.interface.causal_claim
    if not said or (claim and not claim.startswith("code ")) or patient.spec.causal:
        raise NotApplicable("it does not say that it has no causal mask")
    for site in patient.see().sites:
        if site.grid is not None and _causal(site):
            yield Finding(
                "causal-unasked",
                "bug",
                f"{said}, but without a mask argument no position attends to a later one",
                "leave the causal mask out (is_causal=False)",
                site.where_masked(site.steps_before),
            )
            return


def _said(patient: Patient) -> str:
    module = patient.module
    for name in ("is_causal", "causal"):
        if getattr(module, name, None) is False:
            return f"{name} is False"
    found = _SAYS.search(f"{type(module).__name__}\n{type(module).__doc__ or ''}")
    return f"it says {found.group(0)!r}" if found else ""


def _causal(site: Site) -> bool:
    allowed = ~(site.scores <= FORBIDDEN) & ~torch.isnan(site.scores)
    n, m = allowed.shape[-2:]
    return n == m > 2 and bool((allowed == torch.ones(n, n, dtype=torch.bool).tril()).all())
