"""The log-sum-exp of each row."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from headwise.call import Scores
from headwise.masks.picked import Picked
from headwise.records.statistics.compute import compute
from headwise.records.statistics.statistic import Statistic
from headwise.softmax import EMPTY, Normaliser


class LogSumExp(Statistic):
    """The log-sum-exp log Σ exp(s) over keys and the learned sink, [B, H, Q]; natural log; -inf if there is none."""

    name = "lse"
    unit = "nats"
    sentence = "The logarithm of the sum of a query's exponentiated scores."
    native = ("highest", "log_sum")
    of_steps = "rows"
    of_shares = "rows"
    nothing = EMPTY

    def empty(self, call: Scores) -> Tensor:
        lse: Tensor = super().empty(call).fill_(EMPTY)
        return lse if call.sinks is None else lse.copy_(call.sinks[:, None])

    def finish(self) -> None:
        self.answer.copy_(self.part.lse)

    def of_rows(self, call: Scores, rows: Mapping[str, Tensor]) -> Tensor:
        return rows["highest"] + rows["log_sum"]


class NormaliserOfRows(Statistic):
    """The two terms of each row's log-sum-exp, [B, H, Q, 2], for a `Normaliser`; records keep them after every pass."""

    name = "normaliser"
    unit = "nats"
    sentence = "The highest score of a query, and how far the log-sum-exp is above it."
    native = ("highest", "log_sum")

    def shape(self, q_len: int, k_len: int) -> tuple[int, ...]:
        return q_len, 2

    def empty(self, call: Scores) -> Tensor:
        answer: Tensor = super().empty(call)
        return answer.copy_(torch.stack(Normaliser.empty(answer[..., 0]).with_sinks(call.sinks), dim=-1))

    def finish(self) -> None:
        self.answer.copy_(torch.stack(self.part.normaliser, dim=-1))

    def of_rows(self, call: Scores, rows: Mapping[str, Tensor]) -> Tensor:
        return torch.stack([rows["highest"], rows["log_sum"]], dim=-1)


def compute_normaliser(call: Scores, rows: Tensor | None = None) -> Normaliser:
    """Compute the normaliser (the two terms of the log-sum-exp) of all rows of a call, [B, H, Q], or only of `rows`."""
    if rows is None:
        return Normaliser(*compute(call, [NormaliserOfRows()])["normaliser"].unbind(-1))
    few, places = rows.unique(return_inverse=True)
    seen = None if call.mask is None else Picked(call.mask, few, torch.arange(call.shape[3], device=few.device))
    found = compute_normaliser(dataclasses.replace(call.part(rows=few), mask=seen))
    return Normaliser(*(x[:, :, places] for x in found))
