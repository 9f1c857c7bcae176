"""Which findings are reported: each one once, causes with the proof from a fit, and no symptom of a reported cause."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from headwise.doctor.catalogue import CATALOGUE
from headwise.doctor.finding import ORDER, Finding


def settled(causes: list[Finding], symptoms: list[Finding]) -> Iterator[Finding]:
    """Each finding once, without symptoms of reported causes, with the catalogue's sources; bugs first."""
    bugs = {x.name for x in (*causes, *symptoms) if x.severity == "bug"}
    explained = {symptom for name in bugs for symptom in EXPLAINS.get(name, ())}
    named: dict[str, int] = {}  # the worst that is known of each cause
    for x in causes:
        named[x.name] = min(ORDER[x.severity], named.get(x.name, 9))
    kept = causes + [x for x in symptoms if x.name not in explained and ORDER[x.severity] < named.get(x.name, 9)]
    seen: set[tuple[object, ...]] = set()
    for finding in sorted(kept, key=lambda x: ORDER[x.severity]):
        key = (finding.name, finding.where)
        if key in seen:
            continue
        seen.add(key)
        entry = CATALOGUE.get(finding.name)
        sources = finding.sources or (entry.sources if entry else ())
        yield dataclasses.replace(finding, sources=sources)


def proved(findings: list[Finding], fitted: list[Finding]) -> list[Finding]:
    """The findings, each with the proof that the fit gives for one of the same name, and the graver severity."""
    by_name = {x.name: x for x in fitted}
    found = []
    for x in findings:
        same = by_name.get(x.name)
        if same is not None and _proof(same):
            graver = min(x, same, key=lambda each: ORDER[each.severity]).severity
            x = dataclasses.replace(
                x, severity=graver, evidence=f"{x.evidence}; {_proof(same)}", where=x.where or same.where
            )
        found.append(x)
    return found


def unnamed(fitted: list[Finding], known: list[Finding]) -> list[Finding]:
    names = {x.name for x in known}
    return [x for x in fitted if x.name not in names]


def _proof(finding: Finding) -> str:
    return finding.evidence.rpartition("; ")[2] if finding.numbers.get("error") is not None else ""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What a mistake in the layout also looks like.
_LEAKS = _names(
    "batch-mixing cache-mismatch causal-corner causal-leak cross-mask empty-row-nan left-padding mask-added "
    "mask-after-softmax mask-broadcast mask-fill-too-small mask-head-order mask-ignored mask-multiplied "
    "mask-polarity masked-key-counts masked-nan-leaks output-shape packing-leak padding-read sizes-fixed "
    "train-eval-differ weights-averaged window-off-by-one wrong-variant output-misplaced"
)
# What a mask that hides nothing, or the wrong keys, also looks like.
_UNMASKED = _names("masked-key-counts causal-leak mask-ignored packing-leak padding-read wrong-variant")
# Mistake -> its symptoms, which are then not reported.
EXPLAINS: dict[str, frozenset[str]] = {
    "head-merge": (_LEAKS - {"head-merge", "batch-mixing"}) | _names("reshape-scrambles"),
    "softmax-axis": _LEAKS | _names("unused-parameter"),
    "weights-transposed": _LEAKS - {"weights-transposed"},
    "head-split": _LEAKS | _names("head-merge reshape-scrambles"),
    "token-split": _LEAKS | _names("reshape-scrambles"),
    "reshape-scrambles": _LEAKS,
    "softmax-split": _names("causal-leak masked-nan-leaks unused-parameter wrong-variant"),
    "weights-misaligned": _LEAKS - {"cache-mismatch"},
    "scores-misaligned": _LEAKS - {"cache-mismatch"},
    "softmax-half": _names("softmax-unstable"),
    "gradient-blocked": _names("gradient-wrong unused-parameter"),
    "argument-order": _names("sizes-fixed wrong-variant"),
    "mask-polarity": _UNMASKED | _names("cache-mismatch empty-row-nan mask-broadcast unused-parameter"),
    "mask-added": _UNMASKED | _names("cross-mask mask-broadcast mask-fill-too-small"),
    "mask-multiplied": _UNMASKED | _names("mask-broadcast mask-fill-too-small"),
    "mask-after-softmax": _UNMASKED | _names("mask-broadcast mask-fill-too-small"),
    "mask-broadcast": (_UNMASKED - {"causal-leak"}) | _names("empty-row-nan mask-fill-too-small sizes-fixed"),
    "masked-key-counts": _names("padding-read"),
    "padding-attended": _names("padding-read"),
    "padding-row": _names("gradient-wrong padding-read unused-parameter"),
    "mask-head-order": _names("masked-key-counts batch-mixing mask-broadcast mask-ignored wrong-variant"),
    "mask-fill-too-small": _UNMASKED | _names("cache-mismatch"),
    "dropout-in-eval": _names(
        "paths-differ batch-mixing cache-mismatch causal-leak gradient-wrong mask-ignored masked-key-counts "
        "padding-read state-dict train-eval-differ wrong-variant"
    ),
    "input-modified": _names(
        "paths-differ batch-mixing dropout-in-eval gradient-blocked gradient-wrong noncontiguous-input state-dict"
    ),
    "state-kept": _LEAKS
    | _names(
        "dropout-in-eval gradient-wrong input-modified memory-ignored noncontiguous-input paths-differ state-dict "
        "unused-parameter"
    ),
    "causal-corner": _names("masked-key-counts cache-mismatch causal-leak"),
    "cache-mismatch": _names("gradient-wrong left-padding"),
    "projection-reused": _names("argument-order unused-parameter wrong-variant"),
    "norm-axis": _names("batch-mixing causal-leak left-padding mask-ignored wrong-variant"),
    "rope-asymmetric": _names("left-padding positions-ignored"),
    "rope-axis": _names("cache-mismatch left-padding positions-ignored wrong-variant"),
    "rope-unused": _names("positions-ignored"),
    "rope-scaling": _names("wrong-variant"),
    "projection-zero": _LEAKS | _names("argument-order projection-reused wrong-scale unused-parameter"),
    "head-idle": _names("unused-parameter gqa-order wrong-variant"),
    "heads-not-dividing": _names("unused-parameter"),
    "output-projection-missing": _names("unused-parameter wrong-variant"),
    "wrong-scale": _names("wrong-variant"),
    "qkv-order": _names("argument-order wrong-variant"),
    "mask-ignored": _names("masked-key-counts wrong-variant"),
    "packing-leak": _names("mask-ignored"),
    "cross-mask": _names("masked-key-counts mask-ignored sizes-fixed"),
}
