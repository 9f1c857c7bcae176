"""The terms of one row of attention weights as numbers: the query, the keys, and everything that changes a score.

weights = softmax(softcap · tanh(scale · k q / softcap) + bias), -inf where not allowed, with the sink in the sum
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise.errors import ArgumentError, RecordError
from headwise.softmax import EMPTY, attention_weights

if TYPE_CHECKING:
    from headwise.call import Scores
    from headwise.records.record import AttentionRecord


# The options of a call that the terms include: views and computations from them support no others.
OPTIONS = frozenset({"bias", "slopes", "softcap", "sinks", "dropout"})


@dataclass(frozen=True, eq=False)
class Terms:
    """All that enters the attention weights of one row (query) of one head, float64 on the CPU. `head_row` makes it."""

    q: Tensor  # [D]
    k: Tensor  # [K, D]; non-finite numbers in forbidden keys, such as padding, become 0
    allowed: Tensor  # bool [K], True = may attend: the mask, and a bias of -inf
    scores: Tensor  # the scores before the softmax, [K]; -inf where not allowed
    scale: float
    softcap: float | None = None
    bias: Tensor | None = None  # [K], the slopes of ALiBi included; 0 where it is -inf
    sink: float | None = None  # the learned logit, which adds exp(sink) to the sum

    @property
    def weights(self) -> Tensor:
        """The weights of the row, [K]; all 0 for a row that attends to nothing."""
        sinks = None if self.sink is None else self.k.new_tensor([self.sink])
        return attention_weights(self.scores[None, None, None], sinks)[0, 0, 0]


def head_row(record: AttentionRecord, example: int, head: int, row: int) -> Terms:
    """Compute the terms (query, keys, mask, bias, …) of one row (query) of one head of one example of a record.

    Raises:
        ArgumentError: there is no such example, head or row.
        RecordError: the record's call has an option that is not in `OPTIONS`.
    """
    batch, heads, q_len, _ = record.shape
    for name, value, count in (("example", example, batch), ("head", head, heads), ("row", row, q_len)):
        if not 0 <= value < count:
            raise ArgumentError(f"{name} must lie in 0 … {count - 1}. Received: {name}={value}")
    call = record.call
    check_shown(call)
    rows = torch.tensor([row], device=call.q.device)
    part = call.part(b=slice(example, example + 1), heads=slice(head, head + 1), rows=rows)
    allowed = _take(call.allowed(rows), example, head)[0]
    k = torch.where(allowed[:, None] | part.k.isfinite(), part.k.double(), 0.0)
    part = replace(part, q=part.q.double(), k=k)
    added = part.added()
    bias = None if added is None else added[0, 0, 0].cpu().expand(len(allowed))
    return Terms(
        q=part.q[0, 0, 0].cpu(),
        k=k[0, 0].cpu(),
        allowed=allowed.cpu(),
        scores=part.unmasked()[0, 0, 0].masked_fill(~allowed, EMPTY).cpu(),
        scale=float(part.scale),
        softcap=None if part.softcap is None else float(part.softcap),
        bias=None if bias is None else bias.masked_fill(bias == EMPTY, 0.0),
        sink=None if part.sinks is None or part.sinks[0] == EMPTY else float(part.sinks[0]),
    )


def check_shown(call: Scores) -> None:
    """Raise RecordError for a call with an option that is not in `OPTIONS`."""
    if (unknown := call.beyond(OPTIONS)) is not None:
        known = ", ".join(sorted(OPTIONS))
        raise RecordError(f"its weights cannot be shown: expected no options but {known}. Received: {unknown}")


def _take(x: Tensor, example: int, head: int) -> Tensor:
    """Take one example and head of a tensor [B|1, H|1, …]."""
    return x[example if len(x) > 1 else 0][head if x.shape[1] > 1 else 0]
