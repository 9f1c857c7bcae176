"""The weight on the first key to which any query may attend."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.call import Scores, Share
from headwise.errors import ArgumentError
from headwise.masks import Mask
from headwise.records.statistics.part import WeightTile
from headwise.records.statistics.statistic import Column, Statistic


@dataclasses.dataclass
class FirstVisible(Statistic):
    """The weight on the first `first_keys` keys to which any query of the example may attend, [B, H, Q].

    This is where heads put the attention that they do not need. Xiao et al. 2024, "Efficient Streaming Language Models
    with Attention Sinks". (The weight of a *learned* sink is `learned_sink`.)
    """

    name = "first_visible"
    unit = "share"
    sentence = "The weight on the first key that any query may attend to."
    column = Column("first visible")
    native = ("at_keys",)
    of_steps = "rows"
    of_shares = "rows"

    first_keys: int = 1

    def __post_init__(self) -> None:
        if self.first_keys < 1:
            raise ArgumentError(f"statistics: first_keys must be at least 1. Received: first_keys={self.first_keys}")

    def begin(self) -> None:
        part = self.part
        keys = self._keys(part.mask, *part.shape[1:], part.share)
        self.visible = keys[part.b % keys.shape[0], part.heads.start % keys.shape[1]].tolist()

    def update(self, tile: WeightTile) -> None:
        for key in self.visible:
            if tile.k_lo <= key < tile.k_hi:
                self.answer[:, tile.rows] += tile.weights[..., key - tile.k_lo]

    def native_options(self, call: Scores) -> dict[str, Any]:
        return {"keys": self._keys(call.mask, *call.shape[2:], call.share)}

    def of_step(self, call: Scores, answer: Tensor, before: int) -> tuple[Tensor, ...]:
        """Return the answer, and the first visible key of this step, as its number from 1 among all keys; 0 = none."""
        first = self._keys(call.mask, *call.shape[2:])[..., :1, None].to(answer.device) + 1
        return answer[..., None], torch.where(first > 0, first + before, 0).expand(*answer.shape, 1)

    def join(self, rows: Sequence[Tensor], k_len: int) -> Tensor | None:
        answer, first = (x[..., 0] for x in rows)
        if self.first_keys > 1:
            return None
        # A step with a later first key does not see the first key of the whole sequence.
        of_all = first.masked_fill(first == 0, k_len + 1).amin(2, keepdim=True)
        return torch.where(first == of_all, answer, 0.0)

    def _keys(self, mask: Mask | None, q_len: int, k_len: int, share: Share | None = None) -> Tensor:
        """Find the first keys to which any query may attend, int64 [B|1, H|1, first_keys]; -1 if there are no more.

        With a `share` (the rows and keys of a longer sequence that one process has), they are the first keys of the
        whole sequence, given as columns of this process; -1 also for keys that the process does not have.
        """
        if share is not None:
            keys, cols = self._keys(share.mask, share.length, share.length), share.cols.cpu()
            at = torch.searchsorted(cols, keys).clamp_(max=len(cols) - 1)
            return torch.where(cols[at] == keys, at, -1)
        most = min(self.first_keys, k_len)
        used = None if mask is None else mask.used_keys(q_len, k_len)  # bool [B|1, H|1, K]
        if used is None:
            return torch.arange(most, device="cpu")[None, None]
        at = torch.where(used, torch.arange(k_len, device=used.device), k_len)
        keys = at.topk(most, largest=False, sorted=True).values
        return keys.masked_fill(keys == k_len, -1).cpu()
