"""A causal mask in a module that says it has none: an encoder whose tokens do not see what follows them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.reading.events import FORBIDDEN
from headwise.doctor.reading.site import Site

FINDINGS = ("causal-unasked",)

_SAYS = re.compile(
    r"\bbi-?directional|\bnon-?causal\b|\bnot causal\b"
    r"|attends? to (all|every) (other )?(tokens?|positions?|of (both|them)\b)(?! (before|up to|so far))",
    re.I,
)


def check(patient: Patient) -> Iterator[Finding]:
    said = _said(patient)
    claim = patient.interface.causal_claim
    if not said or (claim and not claim.startswith("code ")) or patient.spec.causal:
        raise NotApplicable("it does not say that it has no causal mask")
    for site in patient.see().sites:
        if _causal(site):
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
    alone = len(patient.see().sites) == 1  # then what a part says is about this attention
    parts = [part for part in module.modules() if alone and not type(part).__module__.startswith("torch.")]
    kinds = dict.fromkeys(type(part) for part in (module, *parts))
    found = next((m for x in kinds if (m := _SAYS.search(f"{x.__name__}\n{x.__doc__ or ''}"))), None)
    return f"it says {found.group(0)!r}" if found else ""


def _causal(site: Site) -> bool:
    if site.grid is None and (site.layout.right or site.softmax.dims != (site.softmax.scores.ndim - 1,)):
        return False
    scores = site.softmax.scores if site.grid is None else site.scores  # joint attention has tokens of two inputs
    allowed = ~(scores <= FORBIDDEN) & ~torch.isnan(scores)
    n, m = allowed.shape[-2:]
    return n == m > 2 and bool((allowed == torch.ones(n, n, dtype=torch.bool).tril()).all())
