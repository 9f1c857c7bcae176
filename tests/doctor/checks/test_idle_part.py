"""Parts of a weight that are not used."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.doctor.checks.specimens import Attention, found, one, seeded


class FromTheFirst(Attention):
    """Every head reads the features of the first."""

    def split(self, x: Tensor) -> Tensor:
        x = x.view(*x.shape[:2], self.heads, -1)
        return torch.stack([x[:, :, 0] for _ in range(self.heads)], 1)


class Packed(nn.Module):
    """[3 * M, M]"""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(self.qkv(x))
        q, k, v = (y.view(*y.shape[:2], 4, 4).transpose(1, 2) for y in (q, k, v))
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.chunk(3, -1)


class KeysAsQueries(Packed):
    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        q, _, v = x.chunk(3, -1)
        return q, q, v


class KeysAsValues(Packed):
    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        q, k, _ = x.chunk(3, -1)
        return q, k, k


class OneHeadCounts(Attention):
    def merge(self, x: Tensor) -> Tensor:
        keep = torch.zeros(4, 1, 1)
        keep[0] = 1
        return super().merge(x * keep)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (FromTheFirst, "12 of the 16 rows of q.weight [16, 16] never get a gradient (rows 4-15)"),
        (KeysAsQueries, "16 of the 48 rows of qkv.weight [48, 16] never get a gradient (rows 16-31)"),
        (KeysAsValues, "16 of the 48 rows of qkv.weight [48, 16] never get a gradient (rows 32-47)"),
        (OneHeadCounts, "12 of the 16 rows of q.weight [16, 16] never get a gradient (rows 4-15)"),
    ],
)
def test_a_part_of_a_weight_that_is_not_used(module: type[nn.Module], said: str) -> None:
    finding = one("idle_part", seeded(module))
    assert (finding.name, finding.severity) == ("unused-parameter", "bug")
    assert said in finding.evidence


def test_a_packed_weight_that_is_used() -> None:
    assert found("idle_part", seeded(Packed)) == []


class OneStep(nn.Module):
    """One step of an LSTM, from a state of 0: its forget gates have nothing to forget."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.attention = nn.LSTMCell(16, 16), Attention()

    def forward(self, x: Tensor) -> Tensor:
        state, _ = self.cell(x.mean(1))
        return self.attention(x + state[:, None])


def test_gates_of_an_lstm_that_makes_one_step() -> None:
    assert found("idle_part", seeded(OneStep)) == []


class Stacked(nn.Module):
    """The weights of queries, keys, values and outputs in one parameter."""

    chosen = (0, 1, 2)

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 16, 16) / 4)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = ((x @ self.w[i]).unflatten(-1, (4, 4)).transpose(1, 2) for i in self.chosen)
        return ((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).flatten(2) @ self.w[3]


class KeysForValues(Stacked):
    chosen = (0, 1, 1)


def test_a_matrix_of_several_that_is_not_used() -> None:
    finding = one("idle_part", seeded(KeysForValues))
    assert (finding.name, finding.severity) == ("unused-parameter", "bug")
    assert "1 of the 4 matrices in w [4, 16, 16] never get a gradient (number 2, from 0 on)" in finding.evidence
    assert found("idle_part", seeded(Stacked)) == []
