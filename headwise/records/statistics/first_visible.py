"""The weight on the first key that is visible."""

from __future__ import annotations

import dataclasses

from headwise.errors import ArgumentError
from headwise.records.statistics.part import WeightTile
from headwise.records.statistics.statistic import Column, Statistic


@dataclasses.dataclass
class FirstVisible(Statistic):
    """The weight on the first keys that any query of the example may attend to, [B, H, Q].

    This is where heads put the attention that they do not need. Xiao et al. 2024, "Efficient Streaming Language Models
    with Attention Sinks". (The weight of a *learned* sink is `learned_sink`.)
    """

    name = "first_visible"
    unit = "share"
    sentence = "The weight on the first key that any query may attend to."
    column = Column("first visible")

    first_keys: int = 1

    def __post_init__(self) -> None:
        if self.first_keys < 1:
            raise ArgumentError(f"statistics: first_keys must be at least 1. Received: first_keys={self.first_keys}")

    def begin(self) -> None:
        part = self.part
        _, q_len, k_len = part.shape
        used = None if part.mask is None else part.mask.used_keys(q_len, k_len)  # bool [B|1, H|1, K]
        if used is None:
            self.visible = list(range(min(self.first_keys, k_len)))
        else:
            of_part = used[part.b if used.shape[0] > 1 else 0, part.heads.start if used.shape[1] > 1 else 0]
            self.visible = of_part.nonzero()[: self.first_keys, 0].tolist()

    def update(self, tile: WeightTile) -> None:
        for key in self.visible:
            if tile.k_lo <= key < tile.k_hi:
                self.answer[:, tile.rows] += tile.weights[..., key - tile.k_lo]
