"""Heads, positions and examples that are mixed before the products, and a softmax over the wrong axis.

`view(B, H, N, D)` of a tensor [B, N, H * D] runs without an error and trains, but each so-called head then holds
several heads of a few tokens. The marks of the keys say which token and head every vector comes from.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotChecked, Patient
from headwise.doctor.probing.probe import REACHED, ROUNDING, Probe, gap, moved, rows
from headwise.doctor.reading.documents import documents
from headwise.doctor.reading.placement import Placement
from headwise.doctor.reading.projection_names import read_name
from headwise.doctor.reading.site import Site

FINDINGS = ("head-split", "softmax-axis", "weights-transposed", "batch-mixing")

_QUERIES = ("the queries", "the learned queries")
_WORDS = {"q": "queries", "k": "keys", "v": "values"}
_COMPETE = re.compile(r"\bslots? (that )?compet\w+|\bcompet\w+ (between|among|of|over) (the )?slots", re.IGNORECASE)
_SPLIT = "split the heads with .view(B, N, H, D).transpose(1, 2), so that positions and heads stay apart"


_BATCH_FIRST = re.compile(
    r"[\[(]\s*(batch(_size)?|B|N|bs|bsz|b)\s*,\s*(seq\w*|tokens|length|len|T|N|L|S|n|t|l|time|num_\w+|\w*patches|positions)"
    r"(\s*[+-]\s*\d+)?\s*,"
    r"|^\s*(B|b|batch(_size)?|bs|bsz)\s*,\s*\w+\s*,\s*\w+\s*=\s*\w+\.(shape|size)",
    re.MULTILINE,
)
# A module that says this of its inputs may still say of its weights that the batch comes first.
_SEQUENCE_FIRST = re.compile(
    r"batch_first|seq\w*[- ]first|time[- ]first|[\[(]\s*(seq\w*|length|len|T|N|L|S)\s*,\s*(batch(_size)?|B|bs|bsz)\s*,",
    re.IGNORECASE,
)


def check(patient: Patient) -> Iterator[Finding]:
    interface = patient.interface
    documented = "\n".join(x.__doc__ or "" for x in (type(patient.module), type(patient.module).forward))
    text = documented if _BATCH_FIRST.search(documented) else patient.source
    said = _BATCH_FIRST.search(text)
    if interface.batched and not interface.batch_first and said and not _SEQUENCE_FIRST.search(f"{documented}\n{text}"):
        yield Finding(
            "batch-mixing",
            patient.severity("batch-mixing: said to be batch first", "bug"),
            f"{said.group(0).strip()!r} says that the batch comes first, but the module attends along the first "
            "dimension, so it mixes the examples of a batch",
            "pass batch_first=True to the layers it is built of, or transpose",
            patient.where,
        )
    sites = patient.see().sites
    met = [site for site in sites if site.contraction is not None]
    for site in met or sites:  # a softmax that meets no values, beside one that does, is left over
        wrong = [name for name in site.projections if not site.placement(name).right]
        if wrong:
            yield from _placed(patient, site, wrong)
        elif not _both_ways(site, sites):
            yield from _axis(patient, site)
            yield from _competing(patient, site)


def _competing(patient: Patient, site: Site) -> Iterator[Finding]:
    """A softmax over the inputs where slots are said to compete: it is over the slots (Locatello et al. 2020)."""
    said = _COMPETE.search("\n".join(documents(patient.module)))
    if said is None or not site.layout.right or site.softmax.dims != (site.softmax.scores.ndim - 1,):
        return
    yield Finding(
        "softmax-axis",
        "bug",
        f"{said.group(0)!r}, but the softmax is taken over the inputs, for each slot alone",
        "take the softmax over the slots, and then divide by the sum over the inputs",
        site.softmax.where,
        numbers={"axis": float(site.softmax.dims[0])},
    )


def _both_ways(site: Site, sites: Sequence[Site]) -> bool:
    """Whether another softmax of the same scores is over their other axis: each of two inputs attends to the other."""
    return not site.layout.right and any(x.product is site.product and x.layout.right for x in sites)


def _mixes(patient: Patient) -> bool:
    """Whether a change of one example reaches the outputs of others."""
    probe = Probe(patient)
    inputs = probe.inputs()
    change = rows(probe.answers(inputs), probe.output(moved(inputs, 1, queries=True)))
    return float(change[[0, 2]].amax()) > REACHED


def _placed(patient: Patient, site: Site, wrong: list[str]) -> Iterator[Finding]:
    placement = site.placement(wrong[0])
    what = " and ".join(_WORDS[x] for x in wrong)
    if placement.examples and not _mixes(patient):
        raise NotChecked(f"the {what} of several examples are in one product, and the examples stay apart all the same")
    if placement.examples:
        yield Finding(
            "batch-mixing",
            "bug",
            f"the {what} in one product come from several examples: {_listed(placement)}",
            "keep batch and positions separate; check batch_first and which dimensions view and reshape merge",
            site.product.where,
        )
    elif placement.mixed:
        if placement.heads or placement.repeated or len(site.projections.get(wrong[0], ())) == 1:
            raise NotChecked(f"the {what} are each computed from several tokens, as by a convolution")
    else:
        yield Finding(
            "head-split",
            "bug",
            f"a so-called head holds {what} of several heads, and some tokens repeatedly: {_listed(placement)}; "
            "expected each position once, of a single head",
            _SPLIT,
            site.product.where,
        )


def _listed(placement: Placement) -> str:
    return f"positions {', '.join(map(str, placement.tokens[:12]))}"


def _axis(patient: Patient, site: Site) -> Iterator[Finding]:
    layout, met = site.layout, site.contraction
    if layout.mixed or site.softmax.scores.shape[site.softmax.dims[0] if site.softmax.dims else 0] < 2:
        return
    if layout.examples and site.query.position.amin(-1).equal(site.query.position.amax(-1)):
        over = "the batch"
    elif layout.query_position and not layout.other_examples:
        if layout.key_position:
            over = "queries and keys at once"
        else:
            over = "the queries"
            if met is not None and met.side is not None and _transposed(site):
                yield Finding(
                    "weights-transposed",
                    "bug",
                    "the weights are summed over the queries instead of the keys: they are multiplied with the values "
                    "transposed",
                    "multiply weights @ values, [Q, K] @ [K, E]",
                    met.product.where,
                )
                return
    elif layout.query_feature and not layout.key_position:
        over = "the heads"
    elif layout.other_examples or (layout.query_position and layout.key_position):
        over = "the batch"
    elif layout.repeated_keys == 1 and not layout.key_position and _counts_keys(patient):
        over = "the learned queries"
    else:
        return
    shape = list(site.softmax.scores.shape)
    dims = ", ".join(str(d) for d in site.softmax.dims)
    sums = float(site.softmax.weights.sum(site.softmax.dims).mean()) if site.softmax.dims else 1.0
    yield Finding(
        "softmax-axis",
        patient.severity("softmax-axis: over the queries", "bug") if over in _QUERIES else "bug",
        f"the softmax is taken over axis {dims} of scores {shape}, which is {over}; the keys are on another axis, so "
        "the weights of a query over its keys do not sum to 1",
        "take the softmax over the axis of the keys, softmax(dim=-1) for scores [B, H, Q, K]",
        site.softmax.where,
        numbers={"axis": float(site.softmax.dims[0]), "sum": sums},
    )


def _counts_keys(patient: Patient) -> bool:
    """Whether the order of the keys makes no difference, but having each of them twice does: a mean over keys would be
    the same.
    """
    probe = Probe(patient)
    inputs = probe.inputs()
    names = [name for name in inputs.tensors() if name != "query" or not probe.crosses]

    def change(other: Callable[[Tensor], Tensor]) -> float:
        changed = {name: other(getattr(inputs, name)) for name in names}
        after = probe.attempt(dataclasses.replace(inputs, **changed))
        return gap(before, after) if isinstance(after, Tensor) and after.shape == before.shape else math.nan

    before = probe.answers(inputs)
    return change(lambda x: x.flip(1)) <= ROUNDING < change(lambda x: torch.cat([x, x], 1))


def _transposed(site: Site) -> bool:
    """Whether the softmax is right and the product with the values is wrong, by the names of the projections."""
    letters = {
        side: {read_name(seed.name.removesuffix(".weight")).letters for seed in site.projections[side]} for side in "qk"
    }
    if letters["q"] == {"k"} or letters["k"] == {"q"}:
        return True
    named = letters["q"] == {"q"} or letters["k"] == {"k"}
    return not named and not site.queries_left
