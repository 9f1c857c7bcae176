"""Edges of graphs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import headwise
from tests.doctor.checks.specimens import Attention, found, one, seeded


class Incoming(Attention):
    """adj: [B, N, N], adj[b, s, t] = 1 for an edge from node s to node t; a node attends to the starts of its edges."""

    def forward(self, nodes: Tensor, adj: Tensor) -> Tensor:
        allowed = self.turned(adj.bool()) | torch.eye(nodes.shape[1], dtype=torch.bool)
        return self.attend(nodes, nodes, allowed[:, None])

    def turned(self, adj: Tensor) -> Tensor:
        return adj.mT


class Outgoing(Incoming):
    """adj: [B, N, N], adj[b, s, t] = 1 for an edge from node s to node t; a node attends to the starts of its edges."""

    def turned(self, adj: Tensor) -> Tensor:
        return adj


class Graph(nn.Module):
    """adj: [B, N, N], adj[b, i, j] = 1 if node i receives messages from node j."""

    dim = 2

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.start, self.end = nn.Linear(16, 16), nn.Linear(16, 1), nn.Linear(16, 1)

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        h = self.lin(x)
        e = nn.functional.leaky_relu(self.end(h) + self.start(h).mT, 0.2)
        allowed = adj.bool() | torch.eye(x.shape[1], dtype=torch.bool)
        alpha = torch.softmax(e.masked_fill(~allowed, -torch.inf), dim=self.dim)
        return alpha @ h


class OverReceivers(Graph):
    dim = 1


def test_edges_that_are_read_transposed() -> None:
    finding = one("edges", seeded(Outgoing))
    assert (finding.name, finding.severity) == ("mask-broadcast", "bug")
    assert found("edges", seeded(Incoming)) == []
    assert headwise.diagnose(seeded(Incoming)).bugs == ()


def test_weights_that_sum_to_1_over_the_receivers() -> None:
    finding = one("edges", seeded(OverReceivers))
    assert (finding.name, finding.severity) == ("softmax-axis", "bug")
    assert found("edges", seeded(Graph)) == []
    assert headwise.diagnose(seeded(Graph)).bugs == ()


class Listed(nn.Module):
    """edges: [2, E], messages flow from edges[0] to edges[1], where they are summed."""

    grouped_by = 1

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.start, self.end = nn.Linear(16, 16), nn.Linear(16, 1), nn.Linear(16, 1)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        h, (start, end) = self.lin(x), edges
        scores = nn.functional.leaky_relu(self.start(h)[start] + self.end(h)[end], 0.2)
        return torch.zeros_like(h).index_add(0, end, self.softmax(scores, edges[self.grouped_by]) * h[start])

    def softmax(self, scores: Tensor, index: Tensor) -> Tensor:
        exp = (scores - scores.max()).exp()
        return exp / torch.zeros_like(exp).index_add(0, index, exp)[index]


class ByStart(Listed):
    """edges: [2, E], messages flow from edges[0] to edges[1], where they are summed."""

    grouped_by = 0


EDGES = torch.tensor([[0, 1, 2, 3, 3, 4, 5, 2], [1, 2, 0, 0, 4, 5, 3, 5]])  # node 6 has none


def test_a_softmax_that_is_grouped_by_the_other_ends_of_the_edges() -> None:
    example = ((torch.randn(7, 16, generator=torch.Generator().manual_seed(0)), EDGES), {})
    finding = one("edges", seeded(ByStart), example=example)
    assert (finding.name, finding.severity) == ("softmax-axis", "bug")
    assert "the edges in `edges` still make their outputs differ" in finding.evidence
    assert found("edges", seeded(Listed), example=example) == []


class Model(nn.Module):
    """The softmax is in a part. adj: [B, N, N], adj[b, i, j] = 1 if node i receives messages from node j."""

    def __init__(self, part: type[nn.Module]) -> None:
        super().__init__()
        self.part = part()

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        return self.part(x, adj)


def test_a_softmax_of_a_part() -> None:
    assert one("edges", seeded(Model, OverReceivers)).name == "softmax-axis"
    assert found("edges", seeded(Model, Graph)) == []


class Messages(nn.Module):
    """x: [N, 16] nodes; messages flow from edge_index[0] to edge_index[1]."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.start, self.end = nn.Linear(16, 16), nn.Linear(16, 1), nn.Linear(16, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        source, target = edge_index
        h = self.lin(x)
        scores = nn.functional.leaky_relu(self.start(h)[source] + self.end(h)[target], 0.2)
        weights = self.softmax(scores, self.group(source, target), len(x))
        return torch.zeros_like(h).index_add(0, target, weights * h[source])

    def softmax(self, scores: Tensor, group: Tensor, groups: int) -> Tensor:
        sums = torch.zeros(groups, 1).index_add(0, group, scores.exp())
        return scores.exp() / sums[group]

    def group(self, source: Tensor, target: Tensor) -> Tensor:
        return target


class OverStarts(Messages):
    """x: [N, 16] nodes; messages flow from edge_index[0] to edge_index[1]."""

    def group(self, source: Tensor, target: Tensor) -> Tensor:
        return source


def test_edges_are_made_where_none_are_given() -> None:
    finding = one("edges", seeded(OverStarts))
    assert (finding.name, finding.severity) == ("softmax-axis", "bug")
    assert found("edges", seeded(Messages)) == []


class ByHand(Messages):
    """x: [N, 16] nodes; messages flow from edge_index[0] to edge_index[1]; the sum is written out."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        source, target = edge_index
        h, group = self.lin(x), self.group(source, target)
        weights = torch.exp(self.start(h)[source] + self.end(h)[target])
        weights = weights / (torch.zeros(len(x), 1).index_add(0, group, weights)[group] + 1e-16)
        return torch.zeros_like(h).index_add(0, target, weights * h[source])


class ByHandOverStarts(ByHand):
    """x: [N, 16] nodes; messages flow from edge_index[0] to edge_index[1]; the sum is written out."""

    def group(self, source: Tensor, target: Tensor) -> Tensor:
        return source


def test_a_softmax_that_is_written_out() -> None:
    assert one("edges", seeded(ByHandOverStarts)).name == "softmax-axis"
    assert found("edges", seeded(ByHand)) == []
