"""The distance of the keys to which each row attends."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headwise.call import Scores
from headwise.records.statistics.part import WeightTile
from headwise.records.statistics.statistic import Column, Statistic


class Distance(Statistic):
    """The mean distance of a row's keys, Σ_j A[i, j] |i - j|, [B, H, Q], in tokens; the last query is at the last key.

    If processes share a sequence, i and j are positions in the whole sequence.
    """

    name = "distance"
    unit = "tokens"
    sentence = "How far the keys are that a query attends to, on average."
    column = Column("distance", within_sequence=True)
    native = ("distance",)
    of_steps = "rows"
    of_shares = "rows"

    def begin(self) -> None:
        _, q_len, k_len = self.part.shape
        share = self.part.share
        if share is not None:
            self.at = tuple(x.to(self.answer) for x in (share.rows, share.cols))
            return
        self.offset = k_len - q_len  # the position of the first query
        self.rising = torch.arange(q_len + k_len + 1, dtype=self.answer.dtype, device=self.answer.device)
        self.falling = self.rising.flip(0)
        most = max((tile.rows for tile in self.part.ranges), default=0)
        self.apart = (self.rising[:most, None] - self.rising[:most]).abs()

    def native_options(self, call: Scores) -> dict[str, Any] | None:
        return {} if call.share is None else None

    def update(self, tile: WeightTile) -> None:
        if self.part.share is not None:
            of_rows, of_keys = self.at
            far = (of_keys[tile.keys] - of_rows[tile.rows, None]).abs()
            self.answer[:, tile.rows] = (tile.weights * far).sum(-1)
            return
        # Away from the diagonal |i - j| is the sum of a number of the row and a number of the key. All terms are
        # positive, so nothing cancels.
        rows = tile.q_hi - tile.q_lo
        first, end = tile.q_lo + self.offset, tile.q_hi + self.offset  # the positions of the rows
        left, right = min(max(first, tile.k_lo), tile.k_hi), min(max(end, tile.k_lo), tile.k_hi)
        near = tile.weights[..., left - tile.k_lo : right - tile.k_lo]
        total = (near * self.apart[:rows, left - first : right - first]).sum(-1)
        if left > tile.k_lo:  # |i - j| = (i - first) + (first - j)
            at = self.falling.shape[0] - 1 - (first - tile.k_lo)
            total += _apart(tile.weights[..., : left - tile.k_lo], self.rising[:rows], self.falling[at:])
        if right < tile.k_hi:  # |i - j| = (end - 1 - i) + (j - end + 1)
            after = tile.weights[..., right - tile.k_lo :]
            total += _apart(after, self.falling[-rows:], self.rising[right - end + 1 :])
        self.answer[:, tile.rows] = total


def _apart(weights: Tensor, of_row: Tensor, of_key: Tensor) -> Tensor:
    """Compute Σ_j A[i, j] (of_row[i] + of_key[j]), [n, rows], where n is the number of heads."""
    n, rows, keys = weights.shape
    flat = weights.flatten(0, 1)
    return torch.addcmul(torch.mv(flat, of_key[:keys]).view(n, rows), flat.sum(-1).view(n, rows), of_row)
