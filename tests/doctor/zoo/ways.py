"""The ways attention goes wrong, by number, and the findings that name them: the rows of the confusion table."""

from __future__ import annotations

WAYS: dict[str, tuple[str, ...]] = {
    "1 polarity": ("mask-polarity", "mask-added"),
    "2 mask dropped": ("mask-ignored",),
    "3, 9 leak, small fill": ("causal-leak", "mask-fill-too-small"),
    "4 corner": ("causal-corner",),
    "5 window": ("window-off-by-one",),
    "6 empty rows": ("empty-row-nan",),
    "7 masked NaN": ("masked-nan-leaks",),
    "8 overflow": ("mask-overflows-half",),
    "10 softmax axis": ("softmax-axis",),
    "11 scale": ("wrong-scale",),
    "12 heads": ("head-split", "head-merge"),
    "13 mask head order": ("mask-head-order",),
    "14 mask broadcast": ("mask-broadcast",),
    "15 dropout": ("dropout-in-eval", "dropout-misplaced"),
    "16, 19 positions, cache": ("left-padding", "cache-mismatch"),
    "17 RoPE": ("rope-pairing", "rope-asymmetric"),
    "18 RoPE in half": ("rope-half-precision",),
    "21 GQA order": ("gqa-order",),
    "22 QKV order": ("qkv-order",),
    "23 ALiBi": ("alibi-slopes",),
    "24 T5": ("t5-scaled",),
    "25 packing": ("packing-leak",),
    "26 cross mask": ("cross-mask",),
    "27 averaged weights": ("weights-averaged",),
    "28 softmax in half": ("softmax-half",),
    "29 contiguity, in place": ("noncontiguous-input", "input-modified"),
    "30 divisibility": ("heads-not-dividing",),
    "31 batch": ("batch-mixing",),
    "32 train, eval": ("train-eval-differ",),
    "33 arguments": ("projection-reused", "argument-order"),
    "34 no gradient": ("unused-parameter", "gradient-blocked"),
    "others": (
        "output-projection-missing",
        "mask-after-softmax",
        "mask-multiplied",
        "weights-transposed",
        "softmax-unstable",
        "weights-unregistered",
        "sizes-fixed",
    ),
}


def way(names: frozenset[str]) -> str:
    """The row of a mistake: the first that one of its names belongs to."""
    return next(row for row, findings in WAYS.items() if names & set(findings))
