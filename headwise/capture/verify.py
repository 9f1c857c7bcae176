"""Compares some rows of a record with what the model itself computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from headwise.analyses.stack import attended_values, by_key_head
from headwise.call import AttentionCall, suspend_autocast
from headwise.masks.additive import FORBIDS
from headwise.options import EVERY
from headwise.records import AttentionRecord
from headwise.softmax import attention_weights

ROWS = 64


def wrong_weights(
    call: AttentionCall, model: Tensor | Callable[[Tensor | slice], Tensor], scores_dtype: torch.dtype
) -> str | None:
    """Say why a record of `call` would be wrong, given the model's own weights [B, H, Q, K]; None if it is right.

    `model` is the tensor of these weights, or a function that gives the weights of some rows. The model may round its
    scores to half precision and a record does not: differences of this size are allowed.
    """
    rows = _rows(call.shape[2])
    index = EVERY if len(rows) == call.shape[2] else torch.tensor(rows, device=call.q.device)
    s = call.scores(index)
    expected = attention_weights(s, call.sinks)
    weights = model[:, :, index] if isinstance(model, Tensor) else model(index)
    actual = weights.to(expected.dtype)
    relative, absolute = 1e-4, 4 * torch.finfo(weights.dtype).eps + 1e-6
    if torch.allclose(actual, expected, rtol=relative, atol=absolute):  # rounding allows for more
        return None
    # With finfo.min added all scores are equal; only the other parts of the scores are rounded.
    largest = s.masked_fill(s <= FORBIDS, 0.0).abs().amax(-1, keepdim=True)
    # Three roundings of a score of that size; twice that, because the row's sum has the same error.
    rounding = torch.expm1((8 * torch.finfo(scores_dtype).eps * largest).clamp(max=2.0))
    allowed = expected * (rounding + relative) + absolute
    empty = (s == -torch.inf).all(-1, keepdim=True)
    actual = torch.where(empty & actual.isnan(), 0.0, actual)  # torch's softmax of an empty row is NaN
    return _first_difference(expected, actual, allowed, rows, "weight")


def with_own_rows(call: AttentionCall, weights: Tensor) -> AttentionCall:
    """Take scores from the model's `weights` [B, H, Q, K] in rows that a finite bias forbids wholly; return the call.

    The bias that was added to these rows (of padding) is so large that it rounded their scores: -65504 to multiples of
    32 in float16, so that the keys with the highest scores get all the weight.
    """
    if call.bias is None:
        return call
    top = call.bias.amax(-1, keepdim=True)
    rounded = (top <= FORBIDS) & top.isfinite()
    if not bool(rounded.any()):
        return call
    scores = AttentionRecord(dataclasses.replace(call, mask=None, bias=None, sinks=None)).scores()
    own = weights.to(scores.dtype).log() - scores
    return dataclasses.replace(call, bias=torch.where(rounded, own, call.bias))


def wrong_output(call: AttentionCall, out: Tensor) -> str | None:
    """Say why a record of `call` would be wrong, given the model's output [B, H, Q, E]; None if it is right."""
    rows = _rows(call.shape[2])
    record = AttentionRecord(call, values=True)
    v = attended_values(record)
    with suspend_autocast(v.device):
        expected = by_key_head(record.weights(rows=rows), v)
    actual = out[:, :, rows].to(expected.dtype)
    size = v.abs().amax((-1, -2), keepdim=True).repeat_interleave(call.heads_per_key_head, 1)
    allowed = (size * (1e-4 + 16 * torch.finfo(out.dtype).eps)).expand_as(expected)
    return _first_difference(expected, actual, allowed, rows, "output")


def _rows(q_len: int) -> list[int]:
    """Return the rows to check: all of a short call; `ROWS` rows of a long one, with the first and the last."""
    if q_len <= ROWS:
        return list(range(q_len))
    # Multiples of the golden ratio are spread evenly and do not repeat.
    return sorted({0, q_len - 1, *(int(q_len * (i * 0.6180339887 % 1)) for i in range(1, ROWS - 1))})


def _first_difference(expected: Tensor, actual: Tensor, allowed: Tensor, rows: list[int], what: str) -> str | None:
    bad = ~(((expected - actual).abs() <= allowed) | (expected.isnan() & actual.isnan()))
    if not bool(bad.any()):
        return None
    b, h, r, c = bad.nonzero()[0].tolist()
    return (
        f"its {what}s could not be explained: in example {b}, head {h}, row {rows[r]}, column {c} the model computed "
        f"{float(actual[b, h, r, c]):.4g}, softmax(q kᵀ) as recognised gives {float(expected[b, h, r, c]):.4g}"
    )
