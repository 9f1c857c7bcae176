"""Attention flow against minimum cuts, found by trying them all."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from headwise import masks
from headwise.analyses import flow
from headwise.errors import ArgumentError, RecordError
from tests.analyses.dense import by_hand, tiny_encoder, tiny_records

close = torch.testing.assert_close


def smallest_cut(capacities: list[Tensor], source: int, sink: int) -> float:
    """The maximum flow is the smallest cut: every way to put the nodes on the two sides, source and sink apart."""
    length, top = len(capacities[0]), len(capacities)
    nodes = [(layer, i) for layer in range(top + 1) for i in range(length)]
    free = [node for node in nodes if node not in ((top, source), (0, sink)) and node[0] not in (0, top)]
    best = float("inf")
    for sides in itertools.product((True, False), repeat=len(free)):
        # Nodes of the top layer other than the source have no way in, other inputs no way out: they cost nothing.
        near = dict(zip(free, sides, strict=True))
        near |= {(0, j): j != sink for j in range(length)} | {(top, i): i == source for i in range(length)}
        cut = sum(
            float(capacities[layer - 1][i, j])
            for layer in range(1, top + 1)
            for i in range(length)
            for j in range(length)
            if near[layer, i] and not near[layer - 1, j]
        )
        best = min(best, cut)
    return best


def test_one_and_two_layers_by_hand() -> None:
    # Â = [[3/4, 1/4], [1/8, 7/8]]. With one layer the only pipe is the flow; with two, Σ_m min(Â[i, m], Â[m, j]).
    close(flow([by_hand()])[0], torch.tensor([[3 / 4, 1 / 4], [1 / 8, 7 / 8]], dtype=torch.float64))
    expected = torch.tensor([[7 / 8, 1 / 2], [1 / 4, 1.0]], dtype=torch.float64)
    close(flow([by_hand(), by_hand()])[0], expected)
    close(flow([by_hand(), by_hand()], rows=1)[0], expected[[1]])
    close(flow([by_hand(), by_hand()], normalise=True)[0], expected / torch.tensor([[11 / 8], [5 / 4]]))


@pytest.mark.parametrize("mask", [None, masks.causal()], ids=["full", "causal"])
@pytest.mark.parametrize("residual", [0.5, 0.1])
def test_three_layers_equal_the_smallest_cut(mask: masks.Mask | None, residual: float) -> None:
    layers = tiny_encoder(n_layers=3, length=4, mask=mask)
    found = flow([layer.record for layer in layers], residual=residual)
    for example in range(2):
        capacities = [
            (1 - residual) * layer.weights[example].mean(0) + residual * torch.eye(4, dtype=torch.float64)
            for layer in layers
        ]
        for i, j in itertools.product(range(4), range(4)):
            assert float(found[example, i, j]) == pytest.approx(smallest_cut(capacities, i, j), abs=1e-12)


def test_rows_and_dtype() -> None:
    records = tiny_records(2, 5)
    whole = flow(records)
    assert whole.dtype == torch.float32
    assert torch.equal(flow(records, rows=[4, 1]), whole[:, [4, 1]])
    assert torch.equal(flow(records, heads="max", rows=0), flow(records, heads="max")[:, :1])
    assert not torch.equal(flow(records, heads="max"), whole)


def test_a_row_without_any_flow_stays_zero() -> None:
    seen = tiny_records(1, 3, mask=masks.lengths([0]))
    assert torch.equal(flow(seen, residual=0.0, normalise=True), torch.zeros(1, 3, 3))


def test_bad_arguments() -> None:
    with pytest.raises(ArgumentError, match=r"at most 16384 edges \(L · N²\). Received: L=2, N=91, 16562 edges"):
        flow(tiny_records(2, 91))
    with pytest.raises(ArgumentError, match=r"flow needs at least one record"):
        flow([])
    with pytest.raises(RecordError, match=r"flow needs layers over the same tokens"):
        flow(tiny_records(1, 3) + tiny_records(1, 4))
    with pytest.raises(ArgumentError, match=r"rows must lie in 0 … 2"):
        flow(tiny_records(1, 3), rows=3)
    with pytest.raises(ArgumentError, match=r"residual must lie in 0 … 1. Received: residual="):
        flow(tiny_records(1, 3), residual=2.0)
