"""The matrix as a small picture, by means."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import adaptive_avg_pool1d

from headwise.records.statistics.part import WeightTile
from headwise.records.statistics.pooled import Pooled


class PooledMean(Pooled):
    """The matrix as a small picture, [B, H, h, w]: each cell the mean of its weights. See `Pooled`."""

    name = "pooled_mean"
    sentence = "The matrix as a small picture: each cell the mean of its weights."

    def reduced(self, rows: Tensor) -> Tensor:
        return rows.sum(2)

    def collect(self, held: Tensor, strips: Tensor, tile: WeightTile) -> None:
        held += strips
        tile.received = strips.sum(1)  # cheaper than from the weights

    def pooled(self, strips: Tensor, width: int) -> Tensor:
        return adaptive_avg_pool1d(strips, width)

    def put(self, cells: Tensor, pooled: Tensor) -> None:
        self.answer[:, cells] += pooled / self.heights[cells, None]
