"""Positions that change nothing, and positions that do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise
from headwise.doctor.calling.interface import discover
from headwise.doctor.patient import NotApplicable
from headwise.nn import positions
from tests.doctor.laws.specimens import found, seeded
from tests.doctor.laws.styles import Plain


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


class Handed(nn.Module):
    """Its model makes the tables, cos and sin [B, N, D], of neighbouring pairs, and hands them to every layer."""

    def __init__(self, no_positions: bool = False) -> None:
        super().__init__()
        self.no_positions = no_positions
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor, position_embeddings: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (4, 4)).transpose(1, 2) for f in (self.q, self.k, self.v))
        cos, sin = position_embeddings
        if not self.no_positions:
            q, k = self.turned(q, cos[:, None], sin[:, None]), self.turned(k, cos[:, None], sin[:, None])
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        found: Tensor = self.o(out.transpose(1, 2).flatten(2))
        return found

    def turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return x * cos + torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2) * sin


class HandedInVain(Handed):
    """It reads the tables, whatever its settings."""

    def turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor, position_embeddings: tuple[Tensor, Tensor]) -> Tensor:
        cos, sin = position_embeddings
        assert cos.shape == sin.shape
        found: Tensor = super().forward(x, (cos, sin))
        return found


def tables(length: int = 5) -> tuple[Tensor, Tensor]:
    angles = torch.arange(length)[:, None] * torch.tensor([1.0, 1.0, 0.01, 0.01])
    return angles.cos()[None], angles.sin()[None]


@pytest.mark.parametrize("no_positions", [False, True])
def test_tables_that_a_model_hands_over(no_positions: bool) -> None:
    example = ((torch.randn(1, 5, 16), tables()), {})
    assert headwise.diagnose(Handed(no_positions), example=example).bugs == ()


class Selected(Handed):
    """Its positions select rows of the tables: without tables they say nothing."""

    def forward(self, x: Tensor, positions: Tensor, angles: Tensor | None = None) -> Tensor:  # type: ignore[override]
        if angles is not None and positions is None:
            raise ValueError("positions must be given beside angles")
        tables = torch.ones(1, 1, 4), torch.zeros(1, 1, 4)
        if angles is not None:
            tables = angles[positions].cos(), angles[positions].sin()
        found: Tensor = super().forward(x, tables)
        return found


class SelectedInVain(Handed):
    """It reads its positions in every call."""

    def forward(self, x: Tensor, positions: Tensor, angles: Tensor | None = None) -> Tensor:  # type: ignore[override]
        cos = torch.ones(positions.shape[1], 1) + 0 * positions[0, :, None]
        found: Tensor = super().forward(x, (cos[None], torch.zeros(1, 1, 4)))
        return found


@pytest.mark.parametrize(("kind", "bugs"), [(Selected, []), (SelectedInVain, ["positions-ignored"])])
def test_positions_that_only_select_rows_of_tables(kind: type[Handed], bugs: list[str]) -> None:
    example = ((torch.randn(1, 5, 16), torch.arange(5)[None]), {})
    assert [x.name for x in headwise.diagnose(kind(), example=example).bugs] == bugs


def test_tables_that_are_handed_over_in_vain() -> None:
    found = headwise.diagnose(HandedInVain(), example=((torch.randn(1, 5, 16), tables()), {})).bugs
    assert [x.name for x in found] == ["positions-ignored"]


class Buckets(nn.Module):
    """Two layers of causal attention with one table of biases, by the distance from the query back to the key."""

    def __init__(self, layers: int, sign: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.sign = layers, sign
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))
        self.relative_attention_bias = nn.Embedding(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        at = torch.arange(x.shape[1])
        distance = (self.sign * (at[:, None] - at)).clamp(0, 7)
        bias = self.relative_attention_bias(distance).permute(2, 0, 1)
        bias = bias.masked_fill(at > at[:, None], -torch.inf)
        for _ in range(self.layers):
            q, k, v = (f(x).unflatten(-1, (4, 4)).transpose(1, 2) for f in (self.q, self.k, self.v))
            x = x + ((q @ k.mT + bias).softmax(-1) @ v).transpose(1, 2).flatten(2)
        return x


def test_distances_of_the_wrong_sign() -> None:
    assert [x.name for x in found("positions", Buckets(1, -1))] == ["positions-ignored"]
    assert found("positions", Buckets(1, 1)) == []


class Near(Plain):
    """Each token sees itself and its neighbours, by a bias of their distance."""

    def __init__(self) -> None:
        super().__init__()
        self.rel_pos_bias = nn.Parameter(torch.randn(3))

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        apart = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None]
        bias = self.rel_pos_bias[apart.clamp(-1, 1) + 1].masked_fill(apart.abs() > 1, -torch.inf)
        return super().score(q, k) + bias


def test_tokens_that_the_last_one_does_not_see_say_nothing() -> None:
    with pytest.raises(NotApplicable, match="does not attend to the first two"):
        found("positions", seeded(Near))


class Detr(Plain):
    """pos: [B, N, 16], added to the queries and the keys."""

    def forward(self, x: Tensor, pos: Tensor | None = None) -> Tensor:
        return self.out(self.merge(self.score(*self.both_of(x, pos)).softmax(-1) @ self.split(self.v(x))))

    def both_of(self, x: Tensor, pos: Tensor | None) -> tuple[Tensor, Tensor]:
        placed = x if pos is None else x + pos
        return self.split(self.q(placed)), self.split(self.k(placed))


class Encoder(Detr):
    """Positions that every call must pass are added to the queries and the keys."""

    def forward(self, x: Tensor, pos: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, pos)


class BeginsAt(Detr):
    """All tokens stand at the same place, a number."""

    def forward(self, x: Tensor, pos: int) -> Tensor:  # type: ignore[override]
        if not isinstance(pos, int):
            raise TypeError("a number")
        return super().forward(x, torch.tensor([float(pos)]))


def test_positions_that_every_call_must_pass() -> None:
    interface = discover(seeded(Encoder))
    assert dict(interface.way.extras)["pos"](interface.way.sizes(interface.inputs())).shape == (1, 5, 16)
    assert found("positions", seeded(Encoder)) == []
    with pytest.raises(NotApplicable, match="no positions"):
        found("positions", seeded(BeginsAt))
