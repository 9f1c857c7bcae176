"""Positions that change nothing, and positions that do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise
from headwise.nn import positions


def rotated(x: Tensor) -> Tensor:
    """RoPE along the next to last dimension."""
    rates = 10000.0 ** -(torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    angles = torch.arange(x.shape[-2])[:, None] * rates
    angles = torch.cat([angles, angles], -1)
    first, second = x.chunk(2, -1)
    return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()


class Rotary(nn.Module):
    """Causal attention with rotary positions."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.rotary_emb = how, nn.Module()
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (4, 4)) for f in (self.q, self.k, self.v))
        if self.how == "over the heads":
            q, k = rotated(q), rotated(k)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        if self.how == "over the sequence":
            q, k = rotated(q), rotated(k)
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        found: Tensor = self.o(out.transpose(1, 2).flatten(2))
        return found


def test_positions_that_change_nothing() -> None:
    (bug,) = headwise.diagnose(Rotary("not at all")).bugs
    assert bug.name == "positions-ignored"
    assert "it has positions (rotary_emb)" in bug.evidence


def test_a_table_that_runs_over_the_heads() -> None:
    (bug,) = headwise.diagnose(Rotary("over the heads")).bugs
    assert bug.name == "rope-axis"


def test_positions_over_the_sequence() -> None:
    assert headwise.diagnose(Rotary("over the sequence")).healthy


@pytest.mark.parametrize("scheme", [positions.Rope(8), positions.Alibi(4), positions.T5Buckets(4)])
def test_positions_of_this_library(scheme: Any) -> None:
    found = headwise.diagnose(headwise.nn.MultiHeadAttention(32, 4, positions=scheme))
    assert "positions-ignored" not in [x.name for x in found.findings]
