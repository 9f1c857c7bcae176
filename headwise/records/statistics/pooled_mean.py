"""The matrix as a small picture, by means."""

from __future__ import annotations

import torch
from torch.nn.functional import adaptive_avg_pool1d

from headwise.records.statistics.part import WeightTile
from headwise.records.statistics.pooled import Pooled


class PooledMean(Pooled):
    """The matrix as a small picture, [B, H, h, w]: each cell the mean of its weights. See `Pooled`."""

    name = "pooled_mean"
    sentence = "The matrix as a small picture: each cell the mean of its weights."
    over_rows = staticmethod(torch.sum)
    over_keys = staticmethod(adaptive_avg_pool1d)
    join = staticmethod(torch.add)

    def update(self, tile: WeightTile) -> None:
        tile.received = self.add(tile).sum(1)  # cheaper than from the weights

    def finish(self) -> None:
        super().finish()  # sums over the rows of each cell
        _, q_len, _ = self.part.shape
        cells = torch.arange(height := self.answer.shape[1], device=self.answer.device)
        rows = -(-(cells + 1) * q_len // height) - cells * q_len // height
        self.answer /= rows[:, None]
