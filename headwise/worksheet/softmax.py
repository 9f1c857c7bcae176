"""Makes the steps from queries, keys and values to outputs: scores, scale, bias, mask, softmax, weighted sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headwise.language import Sentence
from headwise.worksheet.builder import Builder, side_by_side
from headwise.worksheet.description import ONE, Axis, Matrix, numbered
from headwise.worksheet.formulas import FORBIDDEN


@dataclass(frozen=True)
class Options:
    """The options of `headwise.attention` that change the scores."""

    scale: float | str  # a number, or a formula such as 1/SQRT(4)
    softcap: float | None = None
    sinks: NDArray[np.float64] | None = None  # [H], one logit per head


Heads = Sequence[Matrix]


def scores(b: Builder, q: Heads, k: Heads) -> list[Matrix]:
    """Add a worksheet step for the scores; return q kᵀ [Q × K] of each head.

    Of H query heads and G key heads, query head h uses key head h · G // H.
    """
    made = []
    for h, each in enumerate(q):
        key = k[h * len(k) // len(q)]
        made.append(b.whole(f"Scores_{h + 1}", each.rows, key.rows, f"MMULT({each.name},TRANSPOSE({key.name}))"))
    shared = (
        Sentence(" Each key head serves {count} query heads.").format(count=len(q) // len(k))
        if 1 < len(k) < len(q)
        else ""
    )
    shared = shared or (" All query heads share the one key head." if len(k) == 1 < len(q) else "")
    b.step(
        "Scores",
        Sentence(
            "The dot product of each query and each key is large if the two point in the same direction.{shared}"
        ).format(shared=shared),
        "Sₕ = Qₕ Kₕᵀ",
        *side_by_side([each] for each in made),
    )
    return made


def softened(b: Builder, s: Heads, options: Options) -> list[Matrix]:
    """Add worksheet steps for scale and softcap; return the scores of each head, scaled and, with softcap, bounded."""
    scale = b.option("Scale", options.scale)
    s = [b.cells(f"Scaled_{h}", each.rows, each.cols, f"{scale.name}*{each.name}[i,j]") for h, each in _counted(s)]
    b.step(
        "Scale",
        "Sums of many products are large, and a softmax of large numbers selects a single key. So all scores are "
        "multiplied by a small number.",
        "S'ₕ = scale · Sₕ,  scale = 1/√D by default",
        [scale],
        *side_by_side([each] for each in s),
    )
    if options.softcap is not None:
        cap = b.option("Softcap", options.softcap)
        s = [
            b.cells(f"Capped_{h}", each.rows, each.cols, f"{cap.name}*TANH({each.name}[i,j]/{cap.name})")
            for h, each in _counted(s)
        ]
        b.step(
            "Softcap",
            "The softcap limits every score: tanh compresses large ones.",
            "S'ₕ = softcap · tanh(S'ₕ / softcap)",
            [cap],
            *side_by_side([each] for each in s),
        )
    return list(s)


def biased(b: Builder, s: Heads, bias: Heads) -> list[Matrix]:
    """Add a worksheet step for the bias; return the scores of each head plus its bias. Without bias, add nothing."""
    if not bias:
        return list(s)
    made = [
        b.cells(f"Biased_{h}", each.rows, each.cols, f"{each.name}[i,j]+{bias[h - 1].name}[i,j]")
        for h, each in _counted(s)
    ]
    b.step(
        "Add the bias",
        "The bias of the positions is added to the scores.",
        "S'ₕ = S'ₕ + Bₕ",
        *side_by_side([each] for each in made),
    )
    return made


def masked(b: Builder, s: Heads, allowed: NDArray[np.bool_]) -> list[Matrix]:
    """Add a worksheet step for the mask; return the scores of each head, −∞ where `allowed` [H or 1, Q, K] is False."""
    rows, cols = s[0].rows, s[0].cols
    several = len(allowed) > 1
    masks = [
        b.given("mask", f"Mask_{h + 1}" if several else "Mask", each, rows, cols, digits=0)
        for h, each in enumerate(allowed)
    ]
    made = []
    for h, each in _counted(s):
        mask = masks[(h - 1) % len(masks)].name
        text = f'IF({mask}[i,j]=1,{each.name}[i,j],"{FORBIDDEN}")'
        made.append(b.cells(f"Masked_{h}", rows, cols, text))
    open_ = bool(allowed.all())
    now = " Here every cell is allowed." if open_ else ""
    b.step(
        "Mask",
        Sentence(
            "Which query (row) may attend to which key (column): 1 = may, 0 = may not. A masked score becomes −∞, and "
            "its weight 0.{now}"
        ).format(now=now),
        "S'ₕ = S'ₕ where the mask is 1, else −∞",
        *(side_by_side([mask] for mask in masks) if several else [masks]),
        *side_by_side([each] for each in made),
    )
    return made


def weights(b: Builder, s: Heads, options: Options) -> list[Matrix]:
    """Add two worksheet steps for the softmax of each row; return the weights of each head, [Q × K]."""
    sinks = None
    if options.sinks is not None:
        sinks = b.given("parameter", "Sinks", options.sinks, ONE, numbered("H", len(s), "head "))
    groups, exps = [], []
    for h, each in _counted(s):
        sink = f",{sinks.name}[1,{h}]" if sinks else ""
        top = b.cells(f"Max_{h}", each.rows, ONE, f"MAX({each.name}[i,:]{sink})")
        text = f"IF(ISNUMBER({each.name}[i,j]),EXP({each.name}[i,j]-{top.name}[i,1]),0)"
        exp = b.cells(f"Exp_{h}", each.rows, each.cols, text)
        sink = f"+EXP({sinks.name}[1,{h}]-{top.name}[i,1])" if sinks else ""
        total = b.cells(f"Sum_{h}", each.rows, ONE, f"SUM({exp.name}[i,:]){sink}")
        groups.append([top, exp, total])
        exps.append((exp, total))
    also = (
        " A sink adds one more term to each row's sum: it takes a share of the weights, and has no value."
        if sinks
        else ""
    )
    b.step(
        "Softmax: exponentials",
        Sentence(
            "The largest score of a row is subtracted, so that nothing overflows; this changes no weight. Then the "
            "exponential makes every score positive.{also}"
        ).format(also=also),
        "Eₕ = exp(S'ₕ − max of the row)   sum = Σ E + exp(sink − max)" if sinks else "Eₕ = exp(S'ₕ − max of the row)",
        [sinks] if sinks else [],
        *side_by_side(groups),
    )
    made = []
    groups = []
    for h, (exp, total) in enumerate(exps, start=1):
        text = f"IF({total.name}[i,1]=0,0,{exp.name}[i,j]/{total.name}[i,1])"
        a = b.cells(f"A_{h}", exp.rows, exp.cols, text, kind="weights")
        groups.append([a, b.cells(f"Total_{h}", exp.rows, ONE, f"SUM({a.name}[i,:])")])
        made.append(a)
    less = "The rest up to 1 is the sink's share." if sinks else "A row without an allowed key is all 0."
    b.step(
        "Attention weights",
        Sentence(
            "Each row is divided by its sum. The result is how much each query attends to each key. {less}"
        ).format(less=less),
        "Aₕ = Eₕ / sum of the row",
        *side_by_side(groups),
    )
    return made


def sums(b: Builder, a: Heads, v: Heads) -> list[Matrix]:
    """Add a worksheet step for the weighted sums of the values; return the output of each head, [Q × E]."""
    made = []
    for h, each in _counted(a):
        value = v[(h - 1) * len(v) // len(a)]
        made.append(b.whole(f"Z_{h}", each.rows, value.cols, f"MMULT({each.name},{value.name})"))
    b.step(
        "Weighted sum",
        "The output of each query is the sum of the values, weighted by its attention weights.",
        "Zₕ = Aₕ Vₕ",
        *side_by_side([each] for each in made),
    )
    return made


def concatenated(b: Builder, z: Heads) -> Matrix:
    """Add the worksheet step that puts the outputs of all heads side by side; return them as one matrix [Q × H·E]."""
    cols = Axis("H·E", tuple(f"h{h}{label}" for h, each in _counted(z) for label in each.cols.labels))
    texts = [f"{each.name}[i,{col}]" for each in z for col in range(1, len(each.cols) + 1)]
    made = b.cells("Z", z[0].rows, cols, *texts)
    b.step("Concatenate", "The heads' outputs are placed side by side.", "Z = [Z₁ … Z_H]", [made])
    return made


def attended(
    b: Builder, q: Heads, k: Heads, v: Heads, *, allowed: NDArray[np.bool_], options: Options, bias: Heads = ()
) -> tuple[list[Matrix], list[Matrix]]:
    """Add all worksheet steps from queries, keys and values to outputs; return (weights, output) of each head."""
    s = softened(b, scores(b, q, k), options)
    a = weights(b, masked(b, biased(b, s, bias), allowed), options)
    return a, sums(b, a, v)


def _counted(heads: Heads) -> list[tuple[int, Matrix]]:
    return list(enumerate(heads, start=1))
