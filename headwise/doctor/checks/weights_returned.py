"""Whether the returned weights are those of every head, and whether their rows sum to 1."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from headwise.doctor.calling import token_ids
from headwise.doctor.calling.way import tensors_in
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.masking import hiding
from headwise.doctor.probing.padded_ids import pad_of
from headwise.doctor.probing.probe import Probe
from headwise.doctor.reading.anatomy import look
from headwise.doctor.reading.site import Site

FINDINGS = ("weights-averaged", "weights-wrong", "softmax-axis", "mask-after-softmax")

_PER_HEAD = re.compile(r"average|per_head|head_weights|mean")
_NEAR = 1e-3
# Slot attention (Locatello et al. 2020): the softmax is over the queries, which compete for the keys.
_COMPETES = re.compile(r"\bcompet(e|es|ition)\b|softmax[^.\n]*over the (slots|quer(y|ies))", re.IGNORECASE)


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    inputs = probe.inputs()
    probe.answers(inputs)
    options: dict[str, Any] = {}
    flags = [
        name for name, role in probe.interface.roles.items() if role == "weights-flag" and name in probe.interface.flags
    ]
    asked: tuple[dict[str, Any], ...] = ({}, {"given": dict.fromkeys(flags, True)})
    made_by = (_compared, _of_its_own, _scores)
    wrong = next((x for o in asked for made in made_by for x in made(patient, probe, o)), None)
    if wrong is not None:
        yield wrong
        return
    weights = _weights(probe, {})
    if weights is None:
        options = {"given": dict.fromkeys(flags, True)}
        weights = _weights(probe, options)
    if weights is None:
        raise NotApplicable("it returns no weights")
    yield from _averaged(patient, probe, weights, options)
    for finding in _sums(probe, weights, options):
        if finding.name == "softmax-axis":
            if _COMPETES.search(patient.source):
                continue
            severity = patient.severity("softmax-axis: over the queries", finding.severity)
            finding = dataclasses.replace(finding, severity=severity)
        yield finding


def _weights(probe: Probe, options: dict[str, Any]) -> Tensor | None:
    """[B, ..., Q, K], as returned."""
    try:
        weights = probe.run(probe.inputs(), **options).weights
    except Exception:
        return None
    return None if weights is None else weights.detach()


def _compared(patient: Patient, probe: Probe, options: dict[str, Any]) -> Iterator[Finding]:
    """The returned weights against those that the values were multiplied with, if they were traced."""
    if patient.anatomy is None or not patient.anatomy.sites:
        return
    unmasked = None
    for how, mask, within in _hiding(patient, probe):
        with within:
            traced = _traced(patient, {**options, **mask})
        if traced is None:
            continue
        used, returned, looped = traced
        unmasked = unmasked if how else used
        told = _of_the_last(used, returned) if looped else ""
        if not told:
            if any(_known(used, x) for x in returned):
                continue
            told = next((said for x in returned if (said := _unlike(used, x, unmasked))), "")
        if told:
            yield Finding(
                "weights-wrong",
                "bug",
                how + told,
                "return the weights that are multiplied with the values, [B, H, Q, K]",
                patient.anatomy.sites[0].softmax.where,
            )
            return


def _scores(patient: Patient, probe: Probe, options: dict[str, Any]) -> Iterator[Finding]:
    """Scores in the place of the weights that a flag asks for."""
    flag = next((x for x in options.get("given", {}) if not re.search(r"score|logit", x)), None)
    if flag is None or patient.anatomy is None or len(patient.anatomy.sites) != 1:
        return
    try:
        found = look(patient, **options)
    except Exception:
        return
    for site in found.sites:
        scores = site.softmax.scores.detach()
        for _, x in tensors_in(found.run.result.raw):
            if x.ndim == 4 and x.shape == scores.shape and _same(scores, x.detach().to(scores.dtype)):
                yield Finding(
                    "weights-wrong",
                    "bug",
                    f"with {flag}=True the returned weights {list(x.shape)} are the scores before the softmax",
                    "return the weights that are multiplied with the values, [B, H, Q, K]",
                    site.softmax.where,
                )
                return


def _hiding(patient: Patient, probe: Probe) -> Iterator[tuple[str, dict[str, Any], AbstractContextManager[None]]]:
    """In words, as arguments and as a context: nothing hidden, key 1 hidden by a mask, and by ids that are padding."""
    yield "", {}, contextlib.nullcontext()
    for mask in hiding(probe.inputs(), 1):
        yield "with key 1 hidden, ", mask, contextlib.nullcontext()
    if token_ids.is_on_embeddings(patient.module):  # it may make its mask of them
        yield "with padding at the end, ", {}, token_ids.padded(pad_of(patient.original), slice(-2, None))


def _of_its_own(patient: Patient, probe: Probe, options: dict[str, Any]) -> Iterator[Finding]:
    """Returned weights of a second softmax of the same queries and keys, which no values are multiplied with."""
    for how, mask, within in _hiding(patient, probe):
        try:
            with within:
                found = look(patient, **options, **mask)
        except Exception:
            continue
        returned = [x.detach() for _, x in tensors_in(found.run.result.raw)]
        sites = [x for x in found.sites if x.grid is not None]
        used = [x for x in sites if x.contraction is not None and _same(x.weights, x.weights_at_values)]
        beside = [x for x in sites if x not in used]
        for site, other in itertools.product(used, beside):
            weights, shown = site.softmax.weights, other.softmax.weights
            same = weights.shape == shown.shape and site.projections["q"] == other.projections["q"]
            if (
                not same
                or site.projections["k"] != other.projections["k"]
                or not any(_same(shown, x) for x in returned)
            ):
                continue
            apart = float((weights - shown).abs().nan_to_num(0.0).amax())
            if apart > _NEAR:
                yield Finding(
                    "weights-wrong",
                    "bug",
                    f"{how}the returned weights {list(shown.shape)} are computed by a softmax of their own, and differ "
                    f"by up to {apart:.2g} from those that are multiplied with the values",
                    "return the weights that are multiplied with the values, [B, H, Q, K]",
                    other.softmax.where,
                    numbers={"apart": apart},
                )
                return


def _traced(patient: Patient, options: dict[str, Any]) -> tuple[Tensor, list[Tensor], bool] | None:
    """[B, H, Q, K] as used, the tensors beside the output that were returned in the same call, and whether the heads
    are computed one after the other.
    """
    try:
        found = look(patient, **options)
    except Exception:
        return None
    sites = [x for x in found.sites if x.grid is not None and x.contraction is not None]
    sites = [x for x in sites if _same(x.weights, x.weights_at_values)]
    # Without a mask a softmax of the scores before the mask has the weights that are used.
    sites = list({x.product.number: x for x in sites}.values())
    looped = len(sites) > 1 and _heads_of_one(sites)
    if len(sites) != 1 and not looped:
        return None
    used = torch.cat([x.weights for x in sites], dim=1)
    result = found.run.result
    returned = [
        x.detach().to(torch.float64)
        for _, x in tensors_in(result.raw)
        if x.is_floating_point() and x.ndim >= 2 and x.numel() > 5 and not bool((x < 0).any())
    ]
    return (used, returned, looped) if returned and bool(used.isfinite().all()) else None


def _heads_of_one(sites: list[Site]) -> bool:
    """Whether these are the heads of one attention: a softmax in a loop, over projections of the same numbers. Layers
    are no such heads: each one projects what the one before has computed.
    """
    first = sites[0]
    for site in sites:
        if site.softmax.where != first.softmax.where or site.weights.shape != first.weights[:, :1].shape:
            return False
        for name in ("q", "k"):
            ours, theirs = (x.projections[name] for x in (site, first))
            if len(ours) != 1 or len(theirs) != 1 or ours[0].left is None or theirs[0].left is None:
                return False
            if not torch.equal(ours[0].left.value, theirs[0].left.value):
                return False
    return True


def _of_the_last(used: Tensor, returned: list[Tensor]) -> str:
    """How weights that were returned are those of the last head alone, while no tensor holds those of another."""
    last, others = used[:, -1:], used[:, :-1]
    if any(_same(x, others[:, 0]) or (_known(used, x) and not _known(last, x)) for x in returned):
        return ""
    alone = next((x for x in returned if _known(last, x) and not _known(others, x)), None)
    if alone is None:
        return ""
    return (
        f"the returned weights {list(alone.shape)} are those of the last of {used.shape[1]} heads, which are computed "
        "one after the other"
    )


def _known(used: Tensor, returned: Tensor) -> bool:
    """Whether these are weights as they were used, of every head or of their mean."""
    near = [used, used.mean(1), used.mean(1, keepdim=True), used.flatten(0, 1), used.transpose(0, 1), used.sum(1)]
    return any(_same(x, returned) for x in [*near, *used.unbind(1)])


def _unlike(used: Tensor, returned: Tensor, unmasked: Tensor | None) -> str:
    """How the returned weights differ from the used ones; "" if they do not, or in no known way. `unmasked`: those that
    are used if no mask is passed.
    """
    b, h, q, k = used.shape
    if _known(used, returned):
        return ""
    wrong = {
        "averaged over the examples of the batch": [used.mean(0), used.mean(0, keepdim=True), used.mean((0, 1))],
        "averaged over the queries": [used.mean(2), used.mean(2, keepdim=True)],
        "averaged over the keys": [used.mean(3), used.mean(3, keepdim=True)],
        "those of the first example alone": [used[0], used[:1]],
        "transposed, [..., K, Q]": [used.mT, used.mean(1).mT, used.flatten(0, 1).mT],
        "divided by the number of heads twice": [used.mean(1) / h, used / h],
    }
    for given, read in (("[B·H]", "[H·B]"), ("[H·B]", "[B·H]")):
        folded = (used if given == "[B·H]" else used.transpose(0, 1)).flatten(0, 1)
        mixed = folded.view(h, b, q, k) if given == "[B·H]" else folded.view(b, h, q, k).transpose(0, 1)
        wrong[f"of several examples at once: they are laid out as {given} and viewed as {read}"] = [
            *(mixed, mixed.transpose(0, 1), mixed.mean(0), mixed.sum(0)),
        ]
    shape = f"the returned weights {list(returned.shape)} are"
    for words, forms in wrong.items():
        if words.startswith("averaged") and b * q * k == 1:
            continue
        if any(_same(x, returned) for x in forms):
            return f"{shape} {words}; there are {b} examples, {h} heads, {q} queries and {k} keys"
    hidden = used == 0
    early = None  # the weights before the mask, if it is they that were returned
    if returned.shape == used.shape:
        inside = returned.masked_fill(hidden, 0.0)
        if _same(used, inside / inside.sum(-1, keepdim=True)):
            early = returned
    elif unmasked is not None and unmasked.shape == used.shape and _known(unmasked, returned):
        early = unmasked
    most = float(early[hidden].max()) if early is not None and bool(hidden.any()) else 0.0
    return f"{shape} those before the mask: masked keys have weights of up to {most:.2g}" if most > 1e-4 else ""


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(torch.allclose(a, b, rtol=1e-4, atol=1e-5))


def _averaged(patient: Patient, probe: Probe, weights: Tensor, options: dict[str, Any]) -> Iterator[Finding]:
    heads = probe.interface.heads or 1
    batch = probe.inputs().query.shape[0]
    squeezed = weights.ndim == 4 and weights.shape[1] == 1
    if heads < 2 or not (squeezed or (weights.ndim == 3 and weights.shape[0] == batch)):
        return
    flag = next((name for name in probe.interface.roles if _PER_HEAD.search(name)), "")
    if flag and flag in probe.interface.flags:
        both = [_weights(probe, {**options, "given": {**options.get("given", {}), flag: x}}) for x in (True, False)]
        if all(isinstance(x, Tensor) and x.shape == weights.shape for x in both):
            yield Finding(
                "weights-averaged",
                "bug",
                f"{flag} has no effect: with True and with False the returned weights have the shape "
                f"{list(weights.shape)}, one map for {heads} heads",
                f"return the weights of every head where {flag} asks for them",
                numbers={"heads": heads},
            )
            return
    yield Finding(
        "weights-averaged",
        "note" if flag else patient.severity("weights-averaged: without a choice", "risk"),
        f"the returned weights have the shape {list(weights.shape)}: one map for {heads} heads"
        + (f", unless {flag} says otherwise" if flag else ", and no argument asks for all of them"),
        f"pass {flag} to see every head" if flag else "return [B, H, Q, K], and let the caller take the mean",
        numbers={"heads": heads},
    )


def _sums(probe: Probe, weights: Tensor, options: dict[str, Any]) -> Iterator[Finding]:
    rows, columns = (_off(weights, dim) for dim in (-1, -2))
    if rows > _NEAR and columns <= _NEAR:
        low, high = (float(x) for x in weights.sum(-1).aminmax())
        yield Finding(
            "softmax-axis",
            "bug",
            f"the returned weights sum to 1 over the queries; over the keys they sum to {low:.3g} … {high:.3g}",
            "softmax(scores, dim=-1), with scores [..., Q, K]",
            numbers={"least": low, "most": high},
        )
    if rows > _NEAR:
        return
    for mask in hiding(probe.inputs(), 1):
        masked = _weights(probe, {**options, **mask})
        if masked is None:
            continue
        low = float(masked.sum(-1).amin())
        if low < 1 - _NEAR and float(masked[..., 1].abs().amax()) <= 1e-6:
            yield Finding(
                "mask-after-softmax",
                "bug",
                f"with one key hidden the returned weights sum to as little as {low:.3g}; without a mask, to 1. They "
                "are masked after the softmax",
                "mask the scores with -inf before the softmax",
                numbers={"least": low},
            )
        return


def _off(weights: Tensor, dim: int) -> float:
    """How far the sums over a dimension differ from 1."""
    return float((weights.float().sum(dim) - 1).abs().amax().nan_to_num(torch.inf))
