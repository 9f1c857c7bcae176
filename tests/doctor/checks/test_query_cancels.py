"""Queries that change no weight."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable
from tests.doctor.checks.specimens import Attention, Cross, found, one, seeded

NAME = "query_cancels"


class Additive(nn.Module):
    """Bahdanau attention; src_mask: True = real."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.u, self.v = nn.Linear(16, 8), nn.Linear(16, 8), nn.Linear(8, 1, bias=False)

    def forward(self, hidden: Tensor, memory: Tensor, src_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        scores = self.v(self.energy(hidden, memory)).squeeze(-1)
        if src_mask is not None:
            scores = scores.masked_fill(~src_mask, -torch.inf)
        weights = scores.softmax(1)
        return torch.bmm(weights[:, None], memory).squeeze(1), weights

    def energy(self, hidden: Tensor, memory: Tensor) -> Tensor:
        return torch.tanh(self.w(hidden)[:, None] + self.u(memory))


class TanhOfTheQuery(Additive):
    def energy(self, hidden: Tensor, memory: Tensor) -> Tensor:
        return torch.tanh(self.w(hidden))[:, None] + self.u(memory)


class Location(Additive):
    """The weights are those of the keys alone: the query is added to what is read."""

    def energy(self, hidden: Tensor, memory: Tensor) -> Tensor:
        return torch.tanh(self.u(memory))

    def forward(self, hidden: Tensor, memory: Tensor, src_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        read, weights = super().forward(hidden, memory, src_mask)
        return hidden + read, weights


def test_a_query_that_the_softmax_takes_away() -> None:
    finding = one(NAME, seeded(TanhOfTheQuery))
    assert (finding.name, finding.severity) == ("query-cancels", "bug")
    assert "softmax(1)" in finding.where.code


def test_queries_that_choose() -> None:
    for kind in (Additive, Location, Cross):
        assert found(NAME, seeded(kind)) == []
    with pytest.raises(NotApplicable):
        found(NAME, seeded(Attention))
