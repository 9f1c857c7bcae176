"""The matrix as a small picture, by maxima."""

from __future__ import annotations

import torch
from torch.nn.functional import adaptive_max_pool1d

from headwise.records.statistics.part import WeightTile
from headwise.records.statistics.pooled import Pooled


class PooledMax(Pooled):
    """The matrix as a small picture, [B, H, h, w]: each cell the largest of its weights. See `Pooled`."""

    name = "pooled_max"
    sentence = "The matrix as a small picture: each cell the largest of its weights."
    over_rows = staticmethod(torch.amax)
    over_keys = staticmethod(adaptive_max_pool1d)
    join = staticmethod(torch.maximum)

    def update(self, tile: WeightTile) -> None:
        self.add(tile)
