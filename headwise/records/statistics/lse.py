"""The log-sum-exp of each row."""

from __future__ import annotations

import math

from torch import Tensor

from headwise.call import Scores
from headwise.records.statistics.statistic import Statistic


class LogSumExp(Statistic):
    """log Σ exp(s) over the keys and the learned sink, [B, H, Q]; natural log; -inf for an empty row without a sink."""

    name = "lse"
    unit = "nats"
    sentence = "The logarithm of the sum of a query's exponentiated scores."

    def empty(self, call: Scores) -> Tensor:
        lse: Tensor = super().empty(call).fill_(-math.inf)
        return lse if call.sinks is None else lse.copy_(call.sinks[:, None])

    def finish(self) -> None:
        self.answer.copy_(self.part.lse)
