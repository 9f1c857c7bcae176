"""Where what a query attended to ends up."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.laws import outputs
from tests.doctor.laws.specimens import Attention, Cross
from tests.doctor.laws.styles import Einsum, Plain, assert_at
from tests.doctor.laws.told import names, told

# By hand.


def test_positions_in_a_row() -> None:
    rows = torch.tensor([[0, 0, -1], [1, 1, 2]])
    assert outputs.positions_in_a_row(rows) == [1, 2]
    assert outputs.positions_in_a_row(rows[:1]) == []


def test_displaced() -> None:
    at = torch.arange(8)
    assert outputs.displaced(at.roll(2), at)
    assert not outputs.displaced(at, at)
    assert not outputs.displaced(at[1:], at[:-1])  # to hide the present
    assert not outputs.displaced(at[2:], at[:-2], side_by_side=True)  # of the past and of the future


# Heads.


class MergesByAReshape(Plain):
    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        merged = ((q @ k.mT / 2).softmax(-1) @ v).reshape(x.shape)
        return self.out(merged)


class TurnsAndFlattens(Einsum):
    """[B, H, N, D] -> [B, D, N, H] -> rows."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return torch.einsum("bhqk,bkhd->bdqh", weights, v).contiguous()


class WithoutProjection(Plain):
    def __init__(self) -> None:
        super().__init__()
        del self.out

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        return ((q @ k.mT / 2).softmax(-1) @ v).contiguous().view(x.shape)


class ForgetsTheProjection(Plain):
    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        return self.merge((q @ k.mT / 2).softmax(-1) @ v)


def test_heads_that_are_merged_across_positions() -> None:
    (finding,) = told(outputs, MergesByAReshape)
    assert (finding.name, finding.severity) == ("head-merge", "bug")
    assert "comes from positions [0, 1, 2, 3]" in finding.evidence  # 4 heads x 5 positions x 4 features, in rows of 16
    assert_at(finding, MergesByAReshape, "return self.out(merged)")
    assert names(outputs, TurnsAndFlattens) == [("head-merge", "bug")]
    (finding,) = told(outputs, WithoutProjection)
    assert "the output at position 0 comes from the queries at positions [0, 1, 2, 3]" in finding.evidence


def test_an_output_projection_that_nothing_is_multiplied_by() -> None:
    (finding,) = told(outputs, ForgetsTheProjection)
    assert (finding.name, finding.severity) == ("output-projection-missing", "bug")
    assert "out.weight [16, 16] exists" in finding.evidence


# Residuals.


class Windows(Attention):
    """Attention inside of windows of 4 tokens that are shifted by 2."""

    back = 2

    def forward(self, x: Tensor) -> Tensor:
        windows = torch.arange(x.shape[1]) // 4
        y = x.roll(-2, 1)
        return x + self.attend(y, y, windows[:, None] == windows).roll(self.back, 1)


class ShiftedTwice(Windows):
    back = -2


class OfThePast(Attention):
    """Every token gets what the token before it attended to, and nothing of itself."""

    def forward(self, x: Tensor) -> Tensor:
        past = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return x + nn.functional.pad(self.attend(x, x, past)[:, :-1], (0, 0, 1, 0))


class Axial(Attention):
    """Attention along the rows and along the columns of a map of 4 by 4, side by side."""

    grid = (4, 4)
    turned = True

    def forward(self, x: Tensor) -> Tensor:
        b, n, m = x.shape
        rows = x.view(b * 4, 4, m)
        columns = x.view(b, 4, 4, m).transpose(1, 2).reshape(b * 4, 4, m)
        along, across = self.attend(rows, rows, None), self.attend(columns, columns, None).view(b, 4, 4, m)
        across = across.transpose(1, 2) if self.turned else across
        return x + along.reshape(b, n, m) + across.reshape(b, n, m)


class ColumnsStayTurned(Axial):
    turned = False


@pytest.mark.parametrize("module", [ShiftedTwice, ColumnsStayTurned])
def test_outputs_of_other_queries(module: type[nn.Module]) -> None:
    assert names(outputs, module) == [("output-misplaced", "bug")]


# Healthy.


class OutputByHead(Einsum):
    """Each head has its own [D, M]; they are summed."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(self.qkv(x))
        weights = (torch.einsum("bqhd,bkhd->bhqk", q, k) / 2).softmax(-1)
        by_head = self.proj.weight.view(-1, self.num_heads, self.head_dim)
        return torch.einsum("bhqk,bkhd,ohd->bqo", weights, v, by_head) + self.proj.bias


class FeaturesBeforeHeads(Einsum):
    """Within a position: an order of features like another, which the projection learns."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return torch.einsum("bhqk,bkhd->bqdh", weights, v)


class SequenceFirst(Einsum):
    """x: [seq, batch, width]."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(self.qkv(x))
        weights = (torch.einsum("qbhd,kbhd->bhqk", q, k) / 2).softmax(-1)
        return self.proj(torch.einsum("bhqk,kbhd->qbhd", weights, v).flatten(2))


class OneNumberAToken(Plain):
    """A logit for each token, [B, N]."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(super().forward(x)).squeeze(-1)


@pytest.mark.parametrize(
    "module",
    [
        *(Plain, Einsum, Cross, OutputByHead, FeaturesBeforeHeads, SequenceFirst, OneNumberAToken),
        *(Windows, OfThePast, Axial),
    ],
)
def test_a_healthy_one(module: type[nn.Module]) -> None:
    assert names(outputs, module) == []
