"""Attention rollout: how much of each input token is mixed into each position after several layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import torch
from torch import Tensor

from headwise.analyses.stack import Matrix, consecutive, in_full_precision, product_rows
from headwise.errors import ArgumentError
from headwise.records import AttentionRecord
from headwise.records.record import Choice, positions

Fusion = Literal["mean", "max", "min"]

_FUSE: dict[str, Callable[..., Tensor]] = {"mean": torch.mean, "max": torch.amax, "min": torch.amin}


@in_full_precision
def rollout(
    records: Iterable[AttentionRecord], *, rows: Choice = None, residual: float = 0.5, heads: Fusion = "mean"
) -> Tensor:
    """Compute attention rollout over consecutive layers.

    Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers".

        Â_l = rownorm((1 - residual) · fuse_h A_l + residual · I)        R_l = Â_l R_(l-1),   R_0 = I

    With the default residual of 0.5 Â is the paper's 0.5 A + 0.5 I, the authors' rownorm(A + I)
    (`compute_joint_attention` of samiraabnar/attention_flow). rownorm also scales up rows of A that sum to less than 1,
    as with learned sinks. A row that attends to nothing keeps its own token, or is 0 if residual is 0.

    Args:
        records: a `Seen` or a sequence of self-attention records of one forward pass, lowest layer first.
        rows: which positions of the top layer (r of them), chosen as in `record.weights`. Each takes O(N) memory.
        residual: the share of the residual connection, from 0 to 1.
        heads: how the heads of a layer are combined: "mean" as in the paper, or "max" or "min".

    Returns:
        [B, r, N]: row i is the share of each of the N input tokens in position i of the top layer; it sums to 1.

    Raises:
        RecordError: a record (the message names it) that is not self-attention over the same tokens as the others.
        ArgumentError: no records, or rows, residual or heads out of range.
    """
    layers = consecutive(records, "rollout")
    chosen = positions(rows, layers[0].shape[3], "rows")
    return product_rows(chosen, layers, mixing(residual, heads))


def mixing(residual: float, heads: Fusion) -> Matrix:
    """Return a function (record, rows) -> those rows of the layer's matrix Â of `rollout`: [B, rows, N]."""
    if not 0.0 <= residual <= 1.0:
        raise ArgumentError(f"residual must lie in 0 … 1. Received: residual={residual}")
    if heads not in _FUSE:
        raise ArgumentError(f"heads must be one of {', '.join(_FUSE)}. Received: heads={heads!r}")

    def matrix(record: AttentionRecord, rows: list[int]) -> Tensor:
        mixed = (1.0 - residual) * _FUSE[heads](record.weights(rows=rows), dim=1)
        mixed[:, range(len(rows)), rows] += residual
        total = mixed.sum(-1, keepdim=True)
        return mixed / total.masked_fill(total == 0, 1.0)

    return matrix
