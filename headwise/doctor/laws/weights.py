"""The weights that meet the values are those of the softmax and sum to 1, and those that are returned are they.

Both are compared number by number, [B, H, Q, K]; how they differ names the mistake.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from headwise.doctor.calling import token_ids
from headwise.doctor.calling.way import tensors_in
from headwise.doctor.finding import Finding, Severity
from headwise.doctor.laws.padded_ids import pad_of
from headwise.doctor.patient import Patient
from headwise.doctor.probing.masking import hiding
from headwise.doctor.probing.probe import Probe
from headwise.doctor.reading.anatomy import look
from headwise.doctor.reading.site import Site
from headwise.language import Sentence

FINDINGS = ("bias-after-softmax", "mask-after-softmax", "normaliser-wrong", "weights-averaged", "weights-wrong")

_NEAR = 1e-3


def check(patient: Patient) -> Iterator[Finding]:
    if patient.anatomy is not None:
        for site, twin in zip(patient.anatomy.sites, patient.anatomy.again or (), strict=False):
            if site.known and twin.known:
                yield from _used(site, twin)
    probe = Probe(patient)
    probe.answers(probe.inputs())
    roles = probe.interface.roles
    flags = [name for name, role in roles.items() if role == "weights-flag" and name in probe.interface.flags]
    asked: list[dict[str, Any]] = [{}, *([{"given": dict.fromkeys(flags, True)}] if flags else [])]
    told = next((finding for options in asked for finding in _compared(patient, probe, options)), None)
    if told is not None:
        yield told
        return
    for options in asked:
        weights = _weights(probe, options)
        if weights is not None:
            yield from _averaged(patient, probe, weights, options)
            return


# --- As used ----------------------------------------------------------------------------------------------------------


def _used(site: Site, twin: Site) -> Iterator[Finding]:
    """What was done to the weights after the softmax; `twin`: the same place with other inputs."""
    before = site.weights.nan_to_num(0.0)
    after = torch.where(site.weights_at_values.isnan(), before, site.weights_at_values)  # some meet no value
    if before.shape != twin.weights.shape or torch.equal(before, after):
        return
    sums, keys = after.sum(-1), after.shape[-1]
    least, most = (float(x) for x in sums.aminmax())
    cut = cut_afterwards(before, after)
    added = after - before, (twin.weights_at_values - twin.weights).nan_to_num(0.0)
    if cut is not None:
        name, fix = "mask-after-softmax", "mask the scores with -inf before the softmax"
        said = Sentence(
            "some weights are set to 0 after the softmax, and those that are left sum to as little as {cut:.2g}: the "
            "keys that are hidden keep their share"
        ).format(cut=cut)
    elif keys > 1 and max(keys - least, most - keys) < _NEAR * keys:
        name, fix = "normaliser-wrong", "divide the weights by their sum, not by their mean, and once"
        said = Sentence(
            "the weights that are multiplied with the values sum to {keys}, the number of keys, for each query"
        ).format(keys=keys)
    elif max(1 - least, most - 1) > _NEAR and _same(*added) and float(added[0].std(-1).max()) > _NEAR:
        name, fix = "bias-after-softmax", "add the bias to the scores, before the softmax"
        said = Sentence(
            "a bias is added to the weights, after the softmax: for each query they sum to {least:.3g} … {most:.3g}"
        ).format(least=least, most=most)
    else:
        return
    where = site.contraction.product.where  # type: ignore[union-attr]
    yield Finding(name, "bug", said, fix, where)


def cut_afterwards(before: Tensor, after: Tensor) -> float | None:
    """The least sum of a row of which a part was set to 0, and the rest left as it was; None if there is none, or if it
    was the smallest weights that were set to 0, whichever keys these are of.
    """
    cut = (after == 0) & (before > _NEAR)
    partly = cut.any(-1) & (after > _NEAR).any(-1)  # a row of zeros may be that of a token of padding
    if not bool(partly.any()) or not torch.allclose(before.masked_fill(cut, 0.0), after, atol=1e-5):
        return None
    most_cut, least_kept = before.where(cut, 0.0).amax(-1), after.masked_fill(after == 0, torch.inf).amin(-1)
    return None if bool((most_cut <= least_kept)[partly].all()) else float(after.sum(-1)[partly].min())


# --- As returned ------------------------------------------------------------------------------------------------------


def _weights(probe: Probe, options: dict[str, Any]) -> Tensor | None:
    """[B, ..., Q, K], as returned."""
    try:
        weights = probe.run(probe.inputs(), **options).weights
    except Exception:
        return None
    return None if weights is None else weights.detach()


def _compared(patient: Patient, probe: Probe, options: dict[str, Any]) -> Iterator[Finding]:
    """The returned weights against those that the values were multiplied with: of the same call, with nothing hidden,
    with key 1 hidden by a mask, and by ids that are padding.
    """
    if patient.anatomy is None:
        return
    ways: list[tuple[str, dict[str, Any], Any]] = [("", {}, contextlib.nullcontext())]
    ways += [("with key 1 hidden, ", mask, contextlib.nullcontext()) for mask in hiding(probe.inputs(), 1)]
    if token_ids.is_on_embeddings(patient.module):  # it may make its mask of them
        padded = token_ids.padded(pad_of(patient.original), slice(-2, None))
        ways.append(("with padding at the end, ", {}, padded))
    unmasked = None
    for how, mask, within in ways:
        try:
            with within:
                found = look(patient, **options, **mask)
        except Exception:
            continue
        sites = [x for x in found.sites if x.grid is not None]
        used = [x for x in sites if x.contraction is not None and _same(x.weights, x.weights_at_values)]
        used = list({x.product.number: x for x in used}.values())
        if not used or not _heads_of_one(used):
            continue
        weights = torch.cat([x.weights for x in used], 1)
        floats = (x.detach().double() for _, x in tensors_in(found.run.result.raw) if x.is_floating_point())
        returned = [x for x in floats if x.ndim >= 2 and x.numel() > 5]
        others_here = (x for x in sites if all(x.product is not y.product for y in used))
        beside = [x for x in others_here if all(x.projections[name] == used[0].projections[name] for name in "qk")]
        others = {"computed by a softmax of their own": beside[0].weights} if beside else {}
        if options:
            others["the scores before the softmax"] = used[0].scores
        told = next((x for each in returned if (x := unlike(weights, each, unmasked, others))), "")
        unmasked = unmasked if how else weights
        if told:
            fix = "return the weights that are multiplied with the values, [B, H, Q, K]"
            severity: Severity = "risk" if "transposed" in told else "bug"  # alignments are drawn with keys as rows
            evidence = Sentence("{how}{told}").format(how=how, told=told)
            yield Finding("weights-wrong", severity, evidence, fix, (beside or used)[0].softmax.where)


def _heads_of_one(sites: list[Site]) -> bool:
    """Whether these are the heads of one attention, and no layers: each layer projects what the one before gave."""
    if not all(bool(x.weights.isfinite().all()) for x in sites):
        return False
    read = [x.left.value for site in sites for x in site.projections["q"][:1] if x.left is not None]
    together = len(read) == len(sites) and all(torch.equal(x, read[0]) for x in read)
    alike = {(x.softmax.where, x.weights.shape) for x in sites}
    return len(sites) == 1 or (together and len(alike) == 1 and sites[0].weights.shape[1] == 1)


def unlike(used: Tensor, returned: Tensor, unmasked: Tensor | None, others: dict[str, Tensor]) -> str:
    """How the returned weights differ from the used ones, [B, H, Q, K]; "" if they do not, or in no known way.
    `unmasked`: those that are used if no mask is passed. `others`: what else may be returned in their place.
    """
    b, h, q, k = used.shape
    shape = Sentence("the returned weights {shape} are").format(shape=list(returned.shape))
    if _known(used, returned):
        return ""
    sums = returned.sum(-1, keepdim=True)
    less = float(sums.min()) > 1e-3 and float(sums.max()) < 0.999 and _known(used, returned / sums)
    folds = used.flatten(0, 1).view(h, b, q, k), used.transpose(0, 1).flatten(0, 1).view(b, h, q, k).transpose(0, 1)
    wrong = {
        **{words: [x] for words, x in others.items()},
        "averaged over the examples of the batch": [used.mean(0), used.mean(0, keepdim=True)],
        "too small: those of a query sum to less than 1": [returned] if less else [],
        "transposed, [..., K, Q]": [used.mT, used.mean(1).mT, used.flatten(0, 1).mT],
        "of several examples at once: [B·H] and [H·B] are confused": [
            y for x in folds for y in (x, x.transpose(0, 1), x.mean(0), x.sum(0))
        ],
    }
    for words, forms in wrong.items():
        if any(_same(x, returned) for x in forms):
            return Sentence("{shape} {words}; there are {b} examples, {h} heads, {q} queries and {k} keys").format(
                shape=shape, words=words, b=b, h=h, q=q, k=k
            )
    hidden = used == 0
    early = None  # the weights before the mask, if it is they that were returned
    if returned.shape == used.shape:
        inside = returned.masked_fill(hidden, 0.0)
        early = returned if _same(used, inside / inside.sum(-1, keepdim=True)) else None
    elif unmasked is not None and unmasked.shape == used.shape and _known(unmasked, returned):
        early = unmasked
    most = float(early[hidden].max()) if early is not None and bool(hidden.any()) else 0.0
    return (
        Sentence("{told} those before the mask: masked keys have weights of up to {most:.2g}").format(
            told=shape, most=most
        )
        if most > 1e-4
        else ""
    )


def _known(used: Tensor, returned: Tensor) -> bool:
    """Whether these are weights as they were used, of every head or of their mean."""
    near = [used, used.mean(1), used.mean(1, keepdim=True), used.flatten(0, 1), used.transpose(0, 1), used.sum(1)]
    return any(_same(x, returned) for x in [*near, *used.unbind(1)])


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(torch.allclose(a, b, rtol=1e-4, atol=1e-5))


def _averaged(patient: Patient, probe: Probe, weights: Tensor, options: dict[str, Any]) -> Iterator[Finding]:
    """One map for several heads."""
    heads, shape = probe.interface.heads or 1, list(weights.shape)
    one_map = (weights.ndim == 4 and shape[1] == 1) or (weights.ndim == 3 and shape[0] == len(probe.inputs().query))
    if heads < 2 or not one_map:
        return
    words = ("average", "per_head", "head_weights", "mean")
    flag = next((name for name in probe.interface.roles if any(word in name for word in words)), "")
    severity: Severity = "note"
    said: str = Sentence("unless {flag} says otherwise, there is").format(flag=flag)
    fix: str = Sentence("pass {flag} to see every head").format(flag=flag)
    if not flag:
        severity = patient.severity("weights-averaged: without a choice", "risk")
        said, fix = "no argument asks for all:", "return [B, H, Q, K], and let the caller take the mean"
    elif flag in probe.interface.flags:
        given = options.get("given", {})
        both = [_weights(probe, {**options, "given": {**given, flag: x}}) for x in (True, False)]
        if all(x is not None and x.shape == weights.shape for x in both):
            severity = "bug"
            said = Sentence("{flag} has no effect: with True and with False there is").format(flag=flag)
            fix = Sentence("return the weights of every head where {flag} asks for them").format(flag=flag)
    yield Finding(
        "weights-averaged",
        severity,
        Sentence("the returned weights have the shape {shape}; {said} one map for {heads} heads").format(
            shape=shape, said=said, heads=heads
        ),
        fix,
    )
