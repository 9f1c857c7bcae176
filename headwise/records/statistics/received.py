"""How much attention each key gets."""

from __future__ import annotations

from torch import Tensor

from headwise.call import Share
from headwise.records.statistics.part import WeightTile
from headwise.records.statistics.statistic import Statistic


class Received(Statistic):
    """The attention that each key gets from all queries, Σ_i A[i, j], [B, H, K]."""

    name = "received"
    unit = "share"
    sentence = "The attention that a key gets from all queries together."
    native = ("received",)
    of_steps = "keys"
    of_shares = "sum"

    def shape(self, q_len: int, k_len: int) -> tuple[int, ...]:
        return (k_len,)

    def update(self, tile: WeightTile) -> None:
        self.answer[:, tile.keys] += tile.received

    def in_whole(self, answer: Tensor, share: Share) -> Tensor:
        return answer.new_zeros(*answer.shape[:2], share.length).index_copy_(2, share.cols.to(answer.device), answer)
