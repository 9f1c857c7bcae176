"""Weights over edges that do not sum to 1."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable
from tests.doctor.laws.specimens import Attention, found, one, seeded

LAW = "edges"
EDGES = torch.tensor([[0, 1, 2, 3, 3, 4, 0, 1, 2, 3, 4], [1, 2, 0, 0, 4, 3, 0, 1, 2, 3, 4]])


class Additive(nn.Module):
    """Scores are a sum of two numbers."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim
        self.values, self.left, self.right = nn.Linear(16, 16), nn.Linear(16, 1), nn.Linear(16, 1)

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        x = self.values(x)
        scores = nn.functional.leaky_relu(self.left(x) + self.right(x).mT)
        return scores.masked_fill(adj == 0, -9e15).softmax(self.dim) @ x


class Listed(nn.Module):
    """Messages flow from edges[0] to edges[1]."""

    def __init__(self, grouped_by: int) -> None:
        super().__init__()
        self.grouped_by = grouped_by
        self.values, self.weight = nn.Linear(16, 16), nn.Linear(32, 1)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.values(x)
        scores = self.weight(torch.cat([x[edges[1]], x[edges[0]]], -1)).exp()
        at = edges[self.grouped_by]
        sums = torch.zeros(len(x), 1).index_add(0, at, scores)
        return torch.zeros_like(x).index_add(0, edges[1], x[edges[0]] * scores / sums[at])


def test_a_softmax_that_is_not_over_the_edges() -> None:
    call = ((torch.randn(5, 16), EDGES), {})
    finding = one(LAW, seeded(Additive, dim=-2))
    assert (finding.name, finding.severity) == ("softmax-axis", "bug")
    assert "the edges in `adj` still make their outputs differ" in finding.evidence
    assert "the edges in `edges`" in one(LAW, seeded(Listed, grouped_by=0), example=call).evidence
    assert found(LAW, seeded(Listed, grouped_by=1), example=call) == []
    for module in (Additive, Attention):
        with pytest.raises(NotApplicable, match="product of queries and keys"):
            found(LAW, module)
