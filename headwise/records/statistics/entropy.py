"""The entropy of each row: how widely a query spreads its attention."""

from __future__ import annotations

import torch

from headwise.records.statistics.part import WeightTile
from headwise.records.statistics.statistic import Column, Statistic


class Entropy(Statistic):
    """The entropy -Σ A log A of each row, [B, H, Q], in nats; 0 for an empty row. The learned sink counts as a key.

    Zhai et al. 2023, "Stabilizing Transformer Training by Preventing Attention Entropy Collapse".
    """

    name = "entropy"
    unit = "nats"
    sentence = "How widely a query spreads its attention: 0 looks at one key only. A learned sink counts as a key."
    column = Column("entropy")
    overwrites = "scores"
    native = ("entropy",)
    of_steps = "rows"
    of_shares = "rows"

    def update(self, tile: WeightTile) -> None:
        torch.sum(tile.spread(), dim=-1, out=self.answer[:, tile.rows])

    def finish(self) -> None:
        # Σ A (lse - s) = Σ A (lse - highest) - Σ A (s - highest), and the term of the learned sink.
        part = self.part
        entropy = part.on_keys * part.above - self.answer - torch.xlogy(part.on_sink, part.on_sink)
        self.answer.copy_(entropy.clamp_(min=0.0).abs_())  # 0, not -0
