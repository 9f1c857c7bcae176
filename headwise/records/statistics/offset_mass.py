"""The weight on the key that is some tokens before the query."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.call import Scores
from headwise.errors import ArgumentError
from headwise.records.statistics.part import WeightTile
from headwise.records.statistics.statistic import Column, Statistic


@dataclasses.dataclass
class OffsetMass(Statistic):
    """The weight A[i, i - d] on the key d tokens before the query, for each offset d: [B, H, Q, offsets].

    It is 0 where there is no such key, or none that the query may see; this 0 is -0.0, by which a mean can leave these
    queries out. d = 1 measures previous-token heads. If a text repeats a block of T tokens, d =
    T measures duplicate-token heads, and d = T - 1 induction heads.
    """

    name = "offset_mass"
    unit = "share"
    sentence = "The weight on the key that is a given number of tokens before the query."
    column = Column(
        "prev",
        name="previous",
        title="previous token",
        sentence="The weight on the token just before the query, of the queries that may see one.",
        options={"offsets": (1,)},
        values=lambda mass: mass[..., 0],
        counts=lambda mass: (mass[..., 0] != 0) | ~mass[..., 0].signbit(),
        within_sequence=True,
    )
    native = ("at_offsets",)
    of_steps = "rows"
    of_shares = "rows"

    offsets: Sequence[int] = (1,)

    def __post_init__(self) -> None:
        if not all(isinstance(offset, int) for offset in self.offsets):
            raise ArgumentError(f"statistics: offsets must be whole numbers. Received: offsets={list(self.offsets)}")

    def shape(self, q_len: int, k_len: int) -> tuple[int, ...]:
        return q_len, len(self.offsets)

    def begin(self) -> None:
        share = self.part.share
        if share is not None:  # the column of each row's key, [Q, offsets]; -1 if there is no key
            rows, cols = (x.to(self.answer.device) for x in (share.rows, share.cols))
            keys = rows[:, None] - torch.tensor(list(self.offsets), dtype=torch.long, device=rows.device)
            at = torch.searchsorted(cols, keys).clamp_(max=len(cols) - 1)
            self.columns = torch.where(cols[at] == keys, at, -1)

    def update(self, tile: WeightTile) -> None:
        if self.part.share is not None:
            at = self.columns[tile.rows]
            here = (at >= tile.k_lo) & (at < tile.k_hi)
            places = torch.where(here, at - tile.k_lo, 0).expand(len(tile.weights), -1, -1)
            self.answer[:, tile.rows] = tile.weights.gather(2, places) * here
            return
        _, q_len, k_len = self.part.shape
        for i, offset in enumerate(self.offsets):
            shift = tile.q_lo + k_len - q_len - offset - tile.k_lo  # row r of the tile looks at its key r + shift
            first = max(0, -shift)
            if first < tile.q_hi - tile.q_lo and shift < tile.k_hi - tile.k_lo:
                diagonal = tile.weights.diagonal(shift, 1, 2)
                start = tile.q_lo + first
                self.answer[:, start : start + diagonal.shape[1], i] = diagonal

    def close(self, call: Scores, answer: Tensor) -> Tensor:
        for i, offset in enumerate(self.offsets):
            answer[..., i].masked_fill_(~call.has_key(offset), -0.0)
        return answer

    def native_options(self, call: Scores) -> dict[str, Any] | None:
        return {"offsets": tuple(self.offsets)} if call.share is None else None

    def found_in(self, other: Statistic, answer: Tensor) -> Tensor | None:
        assert isinstance(other, OffsetMass)
        places = {offset: place for place, offset in enumerate(other.offsets)}
        known = all(offset in places for offset in self.offsets)
        return answer[..., [places[offset] for offset in self.offsets]] if known else None
