"""Which findings are reported: each one once, and no symptom of a reported cause."""

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
    told: dict[tuple[object, ...], Finding] = {}
    for finding in sorted(kept, key=lambda x: ORDER[x.severity]):
        told.setdefault((finding.name, finding.where), finding)
    for finding in told.values():
        entry = CATALOGUE.get(finding.name)
        sources = finding.sources or (entry.sources if entry else ())
        yield dataclasses.replace(finding, sources=sources)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What a mistake in the layout also looks like.
_LEAKS = _names(
    "batch-mixing cache-mismatch causal-corner causal-leak cross-mask empty-row-nan left-padding mask-added "
    "mask-after-softmax mask-broadcast mask-fill-too-small mask-head-order mask-ignored mask-multiplied "
    "mask-polarity masked-key-counts masked-nan-leaks output-shape packing-leak padding-read sizes-fixed "
    "train-eval-differ weights-averaged window-off-by-one output-misplaced"
)
# What a mask that hides nothing, or the wrong keys, also looks like.
_UNMASKED = _names("masked-key-counts causal-leak mask-ignored packing-leak padding-read")
# Mistake -> its symptoms, which are then not reported.
EXPLAINS: dict[str, frozenset[str]] = {
    "head-merge": (_LEAKS - {"head-merge", "batch-mixing"}) | _names("reshape-scrambles"),
    "softmax-axis": _LEAKS | _names("unused-parameter"),
    "weights-transposed": _LEAKS - {"weights-transposed"},
    "head-split": _LEAKS | _names("head-merge reshape-scrambles"),
    "reshape-scrambles": _LEAKS,
    "softmax-split": _names("causal-leak masked-nan-leaks unused-parameter"),
    "weights-misaligned": _LEAKS - {"cache-mismatch"},
    "scores-misaligned": _LEAKS - {"cache-mismatch"},
    "softmax-half": _names("softmax-unstable"),
    "gradient-blocked": _names("gradient-wrong unused-parameter"),
    "argument-order": _names("sizes-fixed"),
    "mask-polarity": _UNMASKED | _names("cache-mismatch empty-row-nan mask-broadcast unused-parameter"),
    "mask-added": _UNMASKED | _names("cross-mask mask-broadcast mask-fill-too-small"),
    "mask-multiplied": _UNMASKED | _names("mask-broadcast mask-fill-too-small"),
    "mask-after-softmax": _UNMASKED | _names("mask-broadcast mask-fill-too-small"),
    "mask-broadcast": (_UNMASKED - {"causal-leak"}) | _names("empty-row-nan mask-fill-too-small sizes-fixed"),
    "masked-key-counts": _names("padding-read"),
    "padding-attended": _names("padding-read"),
    "mask-head-order": _names("masked-key-counts batch-mixing mask-broadcast mask-ignored"),
    "mask-fill-too-small": _UNMASKED | _names("cache-mismatch"),
    "dropout-in-eval": _names(
        "paths-differ batch-mixing cache-mismatch causal-leak gradient-wrong mask-ignored masked-key-counts "
        "padding-read state-dict train-eval-differ"
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
    "does-not-run": _names("train-eval-differ"),
    "cache-mismatch": _names("gradient-wrong left-padding"),
    "projection-reused": _names("argument-order unused-parameter"),
    "norm-axis": _names("batch-mixing causal-leak left-padding mask-ignored"),
    "rope-asymmetric": _names("left-padding positions-ignored"),
    "rope-axis": _names("cache-mismatch left-padding positions-ignored"),
    "projection-zero": _LEAKS | _names("argument-order projection-reused wrong-scale unused-parameter"),
    "head-idle": _names("unused-parameter gqa-order"),
    "heads-not-dividing": _names("unused-parameter"),
    "qkv-order": _names("argument-order"),
    "mask-ignored": _names("masked-key-counts"),
    "packing-leak": _names("mask-ignored"),
    "cross-mask": _names("masked-key-counts mask-ignored sizes-fixed"),
}
