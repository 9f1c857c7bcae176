"""The sum of the weights that meet the values: whether something was added to them, or they were normalised to another.

A softmax gives each query weights that sum to 1. A bias that is added to them moves every query by the same amount,
whatever its keys are; weights that are divided by their mean, and not by their sum, sum to the number of keys. A sum
with 1 added, which lets a head attend to nothing, must be shifted as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.calling.claims import text_of
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.reading.events import Step
from headwise.doctor.reading.site import Site

FINDINGS = ("bias-after-softmax", "mask-after-softmax", "normaliser-wrong")

_NEAR = 1e-3
_OFF = 0.1  # scores whose maxima are closer to 0 do not tell exp(-max) from 1
_SELECTS = re.compile(r"top_?k|threshold|prun|sparse|sparsemax|drop_?key", re.IGNORECASE)  # weights are cut on purpose


def check(patient: Patient) -> Iterator[Finding]:
    judged = False
    for site in patient.see().sites:
        met = site.contraction
        if met is None:
            continue
        judged = True
        dim = -1 if met.left else -2
        keys, sums = met.weights.value.shape[dim], met.weights.value.double().sum(dim)
        step = _biased(site)
        if step is not None and float((sums - 1).abs().amax()) > _NEAR:
            low, high = (float(x) for x in sums.aminmax())
            yield Finding(
                "bias-after-softmax",
                "bug",
                f"a bias is added to the weights, after the softmax: for each query they sum to {low:.3g} … {high:.3g}",
                "add the bias to the scores, before the softmax",
                step.where,
                numbers={"least": low, "most": high},
            )
            return
        cut = _cut_afterwards(site) if not _SELECTS.search("".join(map(text_of, patient.module.modules()))) else None
        if cut is not None:
            yield Finding(
                "mask-after-softmax",
                "bug",
                f"some weights are set to 0 after the softmax, and those that are left sum to as little as {cut:.2g}: "
                "the keys that are hidden keep their share",
                "mask the scores with -inf before the softmax",
                met.product.where,
                numbers={"least": cut},
            )
            return
        if _one_is_not_shifted(site):
            yield Finding(
                "normaliser-wrong",
                "bug",
                "each row is divided by 1 + the sum of exp(score - max): the 1 is not shifted with the scores, so that "
                "the weights sum to a half at least, however low the scores are",
                "shift the 1 as well: exp(score - max) / (exp(-max) + sum)",
                site.softmax.where,
            )
            return
        if keys > 1 and bool(((sums / keys - 1).abs() < _NEAR).all()):
            yield Finding(
                "normaliser-wrong",
                "bug",
                f"the weights that are multiplied with the values sum to {keys}, the number of keys, for each query",
                "divide the weights by their sum, not by their mean, and once",
                met.product.where,
                numbers={"sum": float(keys)},
            )
            return
    if not judged:
        raise NotApplicable("no weights are multiplied with values")


def _one_is_not_shifted(site: Site) -> bool:
    """Whether softmax + 1 (Miller 2023: exp(x) / (1 + sum of exp(x))) is computed with a maximum subtracted, and 1."""
    if site.grid is None or not site.softmax.by_hand:
        return False
    scores, total = site.scores.double(), site.weights.double().sum(-1)
    most = scores.amax(-1, keepdim=True)
    shifted = (scores - most).exp().sum(-1)
    near = (total - shifted / (1 + shifted)).abs() < _NEAR
    return bool(near.all()) and float(most.abs().max()) > _OFF


def _cut_afterwards(site: Site) -> float | None:
    """The least sum of a row of which a part was set to 0, and the rest left as it was; None if there is none."""
    if site.grid is None:
        return None
    before, after = site.weights, site.weights_at_values
    cut = (after == 0) & (before > _NEAR)
    kept = torch.where(cut, 0.0, before)
    partly = cut.any(-1) & (after > _NEAR).any(-1)  # a row of zeros may be that of a token of padding
    if not bool(partly.any()) or not torch.allclose(kept.nan_to_num(0.0), after.nan_to_num(0.0), atol=1e-5):
        return None
    return float(after.nan_to_num(0.0).sum(-1)[partly].min())


def _biased(site: Site) -> Step | None:
    """The sum of the weights and something that does not depend on the inputs and differs between keys."""
    assert site.contraction is not None
    for step in site.trace.steps:
        if step.name != "add" or not site.softmax.order < step.order < site.contraction.product.order:
            continue
        for x, latest in zip(step.arguments, step.latest, strict=False):
            constant = latest < 0 or site.trace.seed(latest).kind == "parameter"
            if constant and isinstance(x, Tensor) and x.ndim >= 2 and bool((x != x.flatten()[0]).any()):
                return step
    return None
