"""Head importance: how much the loss would change without a head, to first order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

from headwise.analyses.stack import (
    attended_values,
    by_key_head,
    by_layer_and_head,
    in_full_precision,
    listed,
    row_blocks,
    with_gradients,
)
from headwise.errors import ArgumentError
from headwise.records import AttentionRecord


@in_full_precision
def head_importance(
    records: Iterable[AttentionRecord], *, absolute: Literal["example", "token"] = "example", normalise: bool = False
) -> Tensor:
    """Estimate how much the loss depends on each head.

    Michel, Levy & Neubig 2019, "Are Sixteen Heads Really Better than One?".

        I_h = E_x |O_h(x)ᵀ ∂L/∂O_h(x)| = mean over B of |Σ_i Σ_e O_h[i, e] · ∇O_h[i, e]|        (absolute="example")

    section 4.1: the derivative of the loss with respect to a factor ξ_h on the head's output. The authors' code takes
    the absolute value of each token before the sum,

        I_h = mean over B of Σ_i |Σ_e O_h[i, e] · ∇O_h[i, e]|                                   (absolute="token")

    and divides by the number of tokens, not of examples: one factor for all heads. O = A V is computed again, a block
    of rows at a time; V and ∇O come from the record. The loss should be a sum over the examples: with a mean, all
    importances are smaller by a factor of B.

    Args:
        records: a `Seen` or a sequence of records, of any kind, watched with `values=True, gradients=True`.
        absolute: take the absolute value of the sum over an "example", or of each "token".
        normalise: divide each layer's importances by their L2 norm, as the paper does to compare layers.

    Returns:
        [L, H], one row per record.

    Raises:
        RecordError: a record (the message names it) without values or gradients, or with dropout; layers that differ in
            H.
        ArgumentError: no records, or an unknown `absolute`.
    """
    layers = listed(records, "head_importance")
    if absolute not in ("example", "token"):
        raise ArgumentError(f'absolute must be "example" or "token". Received: absolute={absolute!r}')
    with_gradients(layers, "head_importance")
    found = by_layer_and_head([_importance(record, absolute) for record in layers], "head_importance")
    if normalise:
        norm = found.norm(dim=1, keepdim=True)
        found = found / norm.masked_fill(norm == 0, 1.0)
    return found


def _importance(record: AttentionRecord, absolute: str) -> Tensor:
    grad, values = record.grad.to(record.call.dtype), attended_values(record)
    total = torch.zeros(record.shape[:2], dtype=record.call.dtype, device=record.q.device)
    for rows in row_blocks(record):
        share = (by_key_head(record.weights(rows=rows), values) * grad[:, :, rows]).sum(-1)
        total += (share.abs() if absolute == "token" else share).sum(-1)
    return total.abs().mean(0)
