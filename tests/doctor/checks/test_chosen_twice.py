"""Decoders that choose each input once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable, NotChecked
from tests.doctor.checks.specimens import found, one, seeded
from tests.doctor.checks.styles import Plain


class Tour(nn.Module):
    """nodes: [B, N, M] -> a tour [B, N] in which each node is visited once, and its log-probability [B]."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        at, visited, tour, total = nodes.mean(1), torch.zeros(nodes.shape[:2], dtype=torch.bool), [], 0.0
        for _ in range(nodes.shape[1]):
            logits = 5 * ((self.q(at)[:, None] * self.k(nodes)).sum(-1) / 4).tanh()
            weights = self.hide(logits, visited).softmax(-1)
            choice = torch.multinomial(weights, 1) if self.training else weights.argmax(-1, keepdim=True)
            total = total + weights.gather(1, choice)[:, 0].log()
            visited, tour = visited.scatter(1, choice, True), [*tour, choice]
            at = nodes.gather(1, choice[..., None].expand(-1, -1, 16))[:, 0]
        return torch.cat(tour, 1), total

    def hide(self, logits: Tensor, visited: Tensor) -> Tensor:
        return logits.masked_fill(visited, -torch.inf)


class Multiplied(Tour):
    def hide(self, logits: Tensor, visited: Tensor) -> Tensor:
        return logits * ~visited


class Clipped(Tour):
    """nodes -> a tour. Visited nodes have the least logit, which others may have too."""

    def hide(self, logits: Tensor, visited: Tensor) -> Tensor:
        return logits.masked_fill(visited, -5.0)


@pytest.mark.parametrize("module", [Multiplied, Clipped])
def test_nodes_that_are_visited_again(module: type[nn.Module]) -> None:
    finding = one("chosen_twice", seeded(module))
    assert (finding.name, finding.severity) == ("chosen-twice", "bug")
    assert "mode it chooses input" in finding.evidence


def test_a_healthy_one() -> None:
    assert found("chosen_twice", seeded(Tour)) == []


class Visits(Plain):
    """Attends to the nodes of a tour."""


def test_where_nothing_is_chosen() -> None:
    with pytest.raises(NotChecked, match="no choices"):
        found("chosen_twice", seeded(Visits))
    with pytest.raises(NotApplicable, match="nothing says"):
        found("chosen_twice", seeded(Plain))
