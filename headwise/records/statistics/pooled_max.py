"""The matrix as a small picture, by maxima."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import adaptive_max_pool1d

from headwise.records.statistics.part import WeightTile
from headwise.records.statistics.pooled import Pooled


class PooledMax(Pooled):
    """The matrix as a small picture, [B, H, h, w]: each cell the largest of its weights. See `Pooled`."""

    name = "pooled_max"
    sentence = "The matrix as a small picture: each cell the largest of its weights."

    def reduced(self, rows: Tensor) -> Tensor:
        return rows.amax(2)

    def collect(self, held: Tensor, strips: Tensor, tile: WeightTile) -> None:
        torch.maximum(held, strips, out=held)

    def pooled(self, strips: Tensor, width: int) -> Tensor:
        return adaptive_max_pool1d(strips, width)

    def put(self, cells: Tensor, pooled: Tensor) -> None:
        self.answer[:, cells] = torch.maximum(self.answer[:, cells], pooled)
