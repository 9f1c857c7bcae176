"""Positions that change nothing, and positions that do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise
from headwise.nn import positions
from tests.doctor.laws.specimens import Attention, found, seeded
from tests.doctor.laws.styles import Plain

torch.manual_seed(0)  # for the modules that are made here


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Neighbouring pairs."""
    return x * cos + torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2) * sin


def tables(length: int = 5) -> tuple[Tensor, Tensor]:
    angles = torch.arange(length)[:, None] * torch.tensor([1.0, 1.0, 0.01, 0.01])
    return angles.cos()[None], angles.sin()[None]


class Rotary(Attention):
    """Causal attention with rotary positions."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.rotary_emb = how, nn.Module()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (4, 4)) for f in (self.q, self.k, self.v))
        if self.how == "over the heads":
            q, k = (turned(y, *tables(y.shape[-2])) for y in (q, k))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        if self.how == "over the sequence":
            q, k = (turned(y, *tables(y.shape[-2])) for y in (q, k))
        return self.out(self.merge(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)))


@pytest.mark.parametrize(
    ("how", "bugs"),
    [("not at all", ["positions-ignored"]), ("over the heads", ["rope-axis"]), ("over the sequence", [])],
)
def test_tables_of_its_own(how: str, bugs: list[str]) -> None:
    told = headwise.diagnose(seeded(Rotary, how)).bugs
    assert [x.name for x in told] == bugs
    assert bugs != ["positions-ignored"] or "it has positions (rotary_emb)" in told[0].evidence


@pytest.mark.parametrize("scheme", [positions.Rope(8), positions.Alibi(4), positions.T5Buckets(4)])
def test_positions_of_this_library(scheme: Any) -> None:
    assert found("positions", headwise.nn.MultiHeadAttention(32, 4, positions=scheme)) == []


class Handed(Plain):
    """Its model makes the tables, cos and sin [B, N, D], and hands them to every layer."""

    def __init__(self, no_positions: bool = False, in_vain: bool = False) -> None:
        super().__init__()
        self.no_positions, self.in_vain = no_positions, in_vain

    def forward(self, x: Tensor, position_embeddings: tuple[Tensor, Tensor]) -> Tensor:  # type: ignore[override]
        cos, sin = (table[:, None] for table in position_embeddings)
        q, k, v = (self.split(w(x)) for w in (self.q, self.k, self.v))
        if not self.no_positions and not self.in_vain:
            q, k = turned(q, cos, sin), turned(k, cos, sin)
        return self.out(self.merge(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)))


class InVain(Handed):
    """It reads the tables, whatever its settings."""

    def forward(self, x: Tensor, position_embeddings: tuple[Tensor, Tensor]) -> Tensor:  # type: ignore[override]
        cos, sin = position_embeddings
        return super().forward(x, (torch.ones_like(cos), torch.zeros_like(sin)))


@pytest.mark.parametrize(
    ("module", "given", "bugs"),
    [
        (Handed(), tables(), 0),
        (Handed(no_positions=True), tables(), 0),
        (InVain(), tables(), 1),
    ],
)
def test_positions_that_a_model_hands_over(module: nn.Module, given: Any, bugs: int) -> None:
    told = found("positions", module, example=((torch.randn(1, 5, 16), given), {}))
    assert [x.name for x in told] == bugs * ["positions-ignored"]


class Near(Plain):
    """Each token sees itself and its neighbours, by a bias of their distance."""

    def __init__(self) -> None:
        super().__init__()
        self.rel_pos_bias = nn.Parameter(torch.randn(3))

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        apart = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None]
        bias = self.rel_pos_bias[apart.clamp(-1, 1) + 1].masked_fill(apart.abs() > 1, -torch.inf)
        return super().score(q, k) + bias


class Encoder(Attention):
    """pos: [B, N, 16], added to the queries and the keys; every call must pass it."""

    def forward(self, x: Tensor, pos: Tensor) -> Tensor:  # type: ignore[override]
        q, k, v = self.split(self.q(x + pos)), self.split(self.k(x + pos)), self.split(self.v(x))
        return self.out(self.merge(self.score(q, k).softmax(-1) @ v))


@pytest.mark.parametrize("module", [Near, Encoder])
def test_a_healthy_one(module: type[nn.Module]) -> None:
    assert found("positions", module) == []
