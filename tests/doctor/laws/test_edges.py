"""Weights over edges that do not sum to 1."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.finding import Finding
from headwise.doctor.laws.edges import check
from headwise.doctor.patient import NotApplicable, Patient
from tests.doctor.laws.specimens import Attention, seeded

EDGES = torch.tensor([[0, 1, 2, 3, 3, 4, 0, 1, 2, 3, 4], [1, 2, 0, 0, 4, 3, 0, 1, 2, 3, 4]])


def found(module: type[nn.Module], example: Any = None) -> list[Finding]:
    return list(check(Patient(seeded(module), example=example)))


class Additive(nn.Module):
    """Scores are a sum of two numbers."""

    dim = -1

    def __init__(self) -> None:
        super().__init__()
        self.values, self.left, self.right = nn.Linear(16, 16), nn.Linear(16, 1), nn.Linear(16, 1)

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        x = self.values(x)
        scores = nn.functional.leaky_relu(self.left(x) + self.right(x).mT)
        return scores.masked_fill(adj == 0, -9e15).softmax(self.dim) @ x


class OverTheQueries(Additive):
    dim = -2


class Listed(nn.Module):
    """Messages flow from edges[0] to edges[1]."""

    grouped_by = 1

    def __init__(self) -> None:
        super().__init__()
        self.values, self.weight = nn.Linear(16, 16), nn.Linear(32, 1)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.values(x)
        scores = self.weight(torch.cat([x[edges[1]], x[edges[0]]], -1)).exp()
        at = edges[self.grouped_by]
        sums = torch.zeros(len(x), 1).index_add(0, at, scores)
        return torch.zeros_like(x).index_add(0, edges[1], x[edges[0]] * scores / sums[at])


class GroupedByTheSource(Listed):
    grouped_by = 0


def test_a_softmax_that_is_not_over_the_edges() -> None:
    (finding,) = found(OverTheQueries)
    assert (finding.name, finding.severity) == ("softmax-axis", "bug")
    assert "if all tokens are alike, `adj` still changes the output" in finding.evidence
    (finding,) = found(GroupedByTheSource, ((torch.randn(5, 16), EDGES), {}))
    assert "the edges in `edges` still make their outputs differ" in finding.evidence


def test_healthy_ones() -> None:
    assert found(Listed, ((torch.randn(5, 16), EDGES), {})) == []
    for words, module in (("product of queries and keys", Additive), ("product of queries and keys", Attention)):
        with pytest.raises(NotApplicable, match=words):
            found(module)
