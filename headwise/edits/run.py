"""Computes the output of a call (one attention computation) that edits change."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from headwise.analyses.stack import by_key_head
from headwise.call import AttentionCall
from headwise.edits.edit import Edit
from headwise.edits.where import Where
from headwise.errors import ShapeError
from headwise.functional import attention
from headwise.kernels import exact
from headwise.masks.bits import row_blocks

# The number of attention weights that are computed at once.
CELLS = 2**22


def run(call: AttentionCall, edits: Sequence[Edit], at: Where) -> tuple[AttentionCall, Tensor | None]:
    """Apply the edits to a call, in their order, and compute its output.

    Returns (the edited call, its output [B, H, Q, E] before the edits of outputs). The output is None if the edits
    change only outputs: then the model computes it by its own kernel.
    """
    batch, heads, q_len, _ = call.shape
    whole = (batch, heads, q_len, call.v.shape[3])
    for each in edits:
        call = each.call(call, at)
        if (*call.shape[:3], call.v.shape[3]) != whole:
            raise ShapeError(
                f"{each.name}: the edited call must give an output {list(whole)}. Received: a call that gives "
                f"{[*call.shape[:3], call.v.shape[3]]} at {at.site}"
            )
    of_weights = [each for each in edits if each.needs_weights]
    if of_weights:
        return call, _by_rows(call, of_weights, at)
    if all(each.of_output for each in edits):
        return call, None
    return call, attention(call.q, call.k, call.v, mask=call.mask, **call.options())


def edit_output(edits: Sequence[Edit], at: Where, out: Tensor) -> Tensor:
    """Apply the edits of outputs to an output [B, H, Q, E]."""
    for each in edits:
        out = each.output(out, at)
    return out


def edit_weights(call: AttentionCall, edits: Sequence[Edit], at: Where, rows: slice = slice(None)) -> Tensor:
    """Compute the weights [B, H, rows, K] of a call, and apply the edits of weights to them."""
    return _edited(call.weights(rows), edits, at, rows)


def _edited(weights: Tensor, edits: Sequence[Edit], at: Where, rows: slice) -> Tensor:
    for each in edits:
        weights = each.weights(weights, at, rows)
    return weights


def _by_rows(call: AttentionCall, edits: Sequence[Edit], at: Where) -> Tensor:
    """Compute the output of a call whose weights are edited, for some queries at a time, to save memory."""
    parts, finite = [], exact.is_finite(call.q, call.k, call.v)
    for rows in row_blocks(call.shape, CELLS):
        # If a number is not finite, multiply only pairs that the mask allows or to which an edit gave a weight: NaN
        # times a weight of 0 would be NaN.
        allowed = None if finite else call.allowed(rows)
        plain = call.weights(rows) if allowed is None else exact.compute_weights(call, rows, allowed)
        weights = _edited(plain, edits, at, rows)
        if call.dropout:
            weights = functional.dropout(weights, call.dropout)
        if allowed is None:
            parts.append(by_key_head(weights, call.v.to(weights.dtype)))
        else:
            parts.append(exact.weighed_values(call, weights, allowed | (weights != 0)))
    return torch.cat(parts, 2).to(call.q.dtype)
