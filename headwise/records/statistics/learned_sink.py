"""The weight on the learned sink: a learned logit of each head, which takes part in the softmax beside the keys."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from headwise.call import Scores
from headwise.records.statistics.statistic import Statistic
from headwise.softmax import Normaliser


class LearnedSink(Statistic):
    """The weight on the learned sink (the logit `sinks=` of the call), exp(sink - lse), [B, H, Q]; 0 without a sink."""

    name = "learned_sink"
    unit = "share"
    sentence = "The weight on the learned sink."
    native = ("highest", "log_sum")
    of_steps = "rows"
    of_shares = "rows"

    def empty(self, call: Scores) -> Tensor:
        weight: Tensor = super().empty(call)
        return weight if call.sinks is None else weight.fill_(1.0)

    def finish(self) -> None:
        self.answer.copy_(self.part.on_sink)

    def of_rows(self, call: Scores, rows: Mapping[str, Tensor]) -> Tensor:
        if call.sinks is None:
            return self.empty(call)
        return Normaliser(rows["highest"], rows["log_sum"]).on_sinks(call.sinks)
