"""Attention flow: the attention of several layers as a flow network, for small inputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from headwise.analyses.attention_rollout import Fusion, mixing
from headwise.analyses.stack import consecutive
from headwise.errors import ArgumentError
from headwise.records import AttentionRecord
from headwise.records.record import Choice, positions

# A maximum flow takes up to V E² steps, and one is computed for every pair of positions.
MOST_EDGES = 2**14


def flow(
    records: Iterable[AttentionRecord],
    *,
    rows: Choice = None,
    residual: float = 0.5,
    heads: Fusion = "mean",
    normalise: bool = False,
) -> Tensor:
    """Compute attention flow over consecutive layers.

    Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers".

        flow[i, j] = the maximum flow from position i of the top layer to input token j, through a network whose edge
                     from position a of layer l to position b of layer l - 1 has the capacity Â_l[a, b]

    with Â of `rollout`. One flow for every position and token takes seconds where `rollout` takes milliseconds, so
    there may be at most L · N² = 16384 edges (12 layers of 36 tokens).

    Args:
        records: a `Seen` or a sequence of self-attention records of one forward pass, lowest layer first.
        rows: which positions of the top layer (r of them), chosen as in `record.weights`.
        residual: the share of the residual connection in Â, from 0 to 1.
        heads: how the heads of a layer are combined: "mean", "max" or "min".
        normalise: divide each row by its sum, as `compute_flows` of samiraabnar/attention_flow does.

    Returns:
        [B, r, N]. Rows sum to 1 only with `normalise`: flows to different tokens may use the same edges.

    Raises:
        RecordError: a record (the message names it) that is not self-attention over the same tokens as the others.
        ArgumentError: no records, too large an input, or rows, residual or heads out of range.
    """
    layers = consecutive(records, "flow")
    batch, length = layers[0].shape[0], layers[0].shape[3]
    edges = len(layers) * length**2
    if edges > MOST_EDGES:
        raise ArgumentError(
            f"flow needs a small input: at most {MOST_EDGES} edges (L · N²). Received: L={len(layers)}, N={length}, "
            f"{edges} edges. Use rollout"
        )
    chosen = positions(rows, length, "rows")
    matrix, every = mixing(residual, heads), list(range(length))
    capacities = [matrix(record, every).double().cpu() for record in layers]
    found = torch.stack([_flows([c[b] for c in capacities], chosen) for b in range(batch)])
    if normalise:
        total = found.sum(-1, keepdim=True)
        found = found / total.masked_fill(total == 0, 1.0)
    return found.to(layers[0].q.device, layers[0].call.dtype)


def _flows(capacities: list[Tensor], rows: list[int]) -> Tensor:
    """Compute the flows of one example, [r, N], from the matrix Â [N, N] of each layer, lowest layer first."""
    # Slow to import; torch depends on it.
    import networkx
    from networkx.algorithms.flow import build_residual_network, shortest_augmenting_path

    top, length = len(capacities), len(capacities[0])
    network: Any = networkx.DiGraph()
    network.add_nodes_from((layer, i) for layer in range(top + 1) for i in range(length))
    for layer, matrix in enumerate(capacities, start=1):
        for i, j in matrix.nonzero().tolist():
            network.add_edge((layer, i), (layer - 1, j), capacity=float(matrix[i, j]))
    found = torch.zeros(len(rows), length, dtype=torch.float64, device="cpu")
    how = {"flow_func": shortest_augmenting_path, "residual": build_residual_network(network, "capacity")}
    for place, i in enumerate(rows):
        for j in range(length):
            found[place, j] = networkx.maximum_flow_value(network, (top, i), (0, j), **how)
    return found
