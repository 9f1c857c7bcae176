"""Computes the output of a call that edits change."""

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

# The number of cells of the weights that are computed at once.
CELLS = 2**22


def run(call: AttentionCall, edits: Sequence[Edit], at: Where) -> tuple[AttentionCall, Tensor | None]:
    """(the call after all edits of calls, its output [B, H, Q, E]); the edits are applied in their order.

    The output is None if edits change only outputs: then the model computes the output.
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
    """The output [B, H, Q, E], changed by the edits of outputs."""
    for each in edits:
        out = each.output(out, at)
    return out


def edit_weights(call: AttentionCall, edits: Sequence[Edit], at: Where, rows: slice = slice(None)) -> Tensor:
    """The weights [B, H, rows, K] of a call, changed by the edits of weights."""
    return _edited(call.weights(rows), edits, at, rows)


def _edited(weights: Tensor, edits: Sequence[Edit], at: Where, rows: slice) -> Tensor:
    for each in edits:
        weights = each.weights(weights, at, rows)
    return weights


def _by_rows(call: AttentionCall, edits: Sequence[Edit], at: Where) -> Tensor:
    """The output of a call whose weights are edited, computed for some rows at a time."""
    parts, finite = [], exact.is_finite(call.q, call.k, call.v)
    for rows in row_blocks(call.shape, CELLS):
        # Where something is not finite, only pairs that the mask allows may meet, and pairs to which an edit gave a
        # weight.
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
