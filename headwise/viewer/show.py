"""`headwise.show`: a small notebook output of a few heads of one layer, from recorded or from plain weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from headwise.errors import ArgumentError, DtypeError, ShapeError, brief
from headwise.functional import attention
from headwise.records import AttentionRecord, Seen
from headwise.records.names import name_of
from headwise.records.record import positions
from headwise.records.seen import Layer, one_layer
from headwise.text.places import Place, find_position
from headwise.viewer.inputs import inputs_of
from headwise.viewer.notebook import Inline, Small

MOST = 16  # heads of one output
SUM_OFF = {torch.bfloat16: 2e-2, torch.float16: 5e-3}  # how far from 1 a row may sum; 1e-3 by default
ZERO = -1e4  # the score for a weight of 0, instead of log 0; exp of it is exactly 0 again


def show(
    what: Any,
    *,
    layer: Layer | None = None,
    heads: int | Sequence[int] | None = None,
    kind: Literal["map", "lines"] = "map",
    tokens: Any = None,
    example: int = 0,
    row: Place | None = None,
) -> Inline:
    """Show some heads of one layer in the output of a notebook's cell: their maps side by side, or lines.

        headwise.show(seen, layer=3, heads=[0, 5])
        headwise.show(record, heads=5, kind="lines", row="it")
        headwise.show(weights, tokens=tokens)                     a plain tensor [H, Q, K]

    The maps share one colour scale, and all mark the cell (query and key) under the pointer. `headwise.view` shows
    every layer.

    Args:
        what: a `Seen` and one `layer` of it, a record, or weights: a tensor or an array [H, Q, K], [B, H, Q, K] or
            [Q, K] whose rows sum to 1 (or are 0), or a list of these and one `layer` of it, as models return with
            `output_attentions=True`. Weights are shown unchanged; whether their zeros come from a mask is unknown.
        heads: one or several numbers of heads; None = all, at most 16.
        kind: "map", or "lines" between queries and keys.
        tokens: the names of the positions, if `what` has none, in any form that `headwise.text.as_tokens` takes; for
            two sequences {"source": ..., "target": ...}.
        example: the example of the batch.
        row: the query that is marked first, its number or its text; "it:2" is the second "it".

    Returns:
        An object that is displayed as the last expression of a cell.

    Raises:
        ArgumentError: an argument has an invalid value; an array that is not weights.
        DtypeError, ShapeError: `what` is of another type or shape.
        RecordError: a layer that was not recorded, or tokens that do not fit.
    """
    if kind not in ("map", "lines"):
        raise ArgumentError(f'show: kind must be "map" or "lines". Received: kind={kind!r}')
    seen, record, number = _chosen(what, layer)
    if tokens is not None:
        seen = Seen(seen.records, seen.coverage())
        seen.tokens = tokens
    batch, count, q_len, _ = record.shape
    (example,) = positions(example, batch, "example")
    chosen = positions(heads, count, "heads")
    if not chosen or len(chosen) > MOST:
        raise ArgumentError(f"show: expected 1 to {MOST} heads. Received: {len(chosen)}. Choose some: heads=[0, 1]")
    rows = seen.axes(record)[0]
    tokens_of_rows = rows[example] if rows else None
    at = None if row is None else positions(find_position(row, tokens_of_rows, "row"), q_len, "row")[0]
    given = inputs_of(seen)[example]
    (stack,) = given.stacks
    if number is not None:
        stack = replace(stack, layers=(replace(stack.layers[0], number=number),))
    title = given.name if rows else name_of(record)
    small = Small(kind, tuple(dict.fromkeys(chosen)), at, unnamed=number is None)
    return Inline([replace(given, stacks=(stack,))], title, write="headwise.plot.heatmap(…)", small=small)


def _chosen(what: Any, layer: Layer | None) -> tuple[Seen, AttentionRecord, int | None]:
    """Find the layer to show: (a `Seen` with only its record, the record, the number of the layer or None)."""
    if isinstance(what, Seen):
        record = one_layer(what, layer)
        one = Seen([record], what.coverage())
        one._tokens, one._source_tokens = what._tokens, what._source_tokens
        return one, record, what.layers.index(name_of(record))
    if isinstance(what, (list, tuple)) and what and all(isinstance(each, (Tensor, np.ndarray)) for each in what):
        if not isinstance(layer, int) or not -len(what) <= layer < len(what):
            raise ArgumentError(f"layer: expected a number, 0 … {len(what) - 1}. Received: layer={layer!r}")
        what, layer = what[layer], None
    if layer is not None:
        raise ArgumentError(f"layer: {type(what).__name__} is one layer already. Received: layer={layer!r}")
    record = what if isinstance(what, AttentionRecord) else make_record(what)
    return Seen([record]), record, None


def make_record(weights: Any) -> AttentionRecord:
    """Make a record with given weights, [H, Q, K], [B, H, Q, K] or [Q, K]: their logarithms are its scores.

    Raises DtypeError, ShapeError and ArgumentError for arrays that are not weights: negative, NaN, rows with another
    sum than 1 (rows of zeros are allowed: such a query attends to nothing).
    """
    if isinstance(weights, np.ndarray):
        weights = torch.from_numpy(weights)
    if not isinstance(weights, Tensor) or not weights.is_floating_point():
        expected = "a Seen, a record, or weights: a tensor of floats [H, Q, K]"
        raise DtypeError(f"show: expected {expected}. Received: {brief(getattr(weights, 'dtype', type(weights)))}")
    if weights.ndim not in (2, 3, 4) or 0 in weights.shape:
        raise ShapeError(f"show: expected weights [H, Q, K], [B, H, Q, K] or [Q, K]. Received: {list(weights.shape)}")
    off = SUM_OFF.get(weights.dtype, 1e-3)
    a_BHQK = weights.detach().float().cpu()[(None,) * (4 - weights.ndim)]
    if not bool((a_BHQK >= 0).all()):  # false for NaN too
        raise ArgumentError("show: weights must be 0 or more. Received: negative ones or NaN; are these scores?")
    sums = a_BHQK.sum(-1)
    wrong = ((sums - 1).abs() > off) & (sums != 0)
    if bool(wrong.any()):
        b, h, q = wrong.nonzero()[0].tolist()
        raise ArgumentError(
            f"show: each row of the weights must sum to 1, or be 0. Received: row {q} of head {h} of example {b} sums "
            f"to {float(sums[b, h, q]):.4g}. If these are scores, pass scores.softmax(-1)"
        )
    batch, heads, q_len, k_len = a_BHQK.shape
    bias = a_BHQK.log().clamp(min=ZERO).masked_fill((sums == 0)[..., None], -torch.inf)
    q, k = bias.new_zeros(batch, heads, q_len, 1), bias.new_zeros(batch, heads, k_len, 1)
    return attention(q, k, k, bias=bias, record=True)[1]
