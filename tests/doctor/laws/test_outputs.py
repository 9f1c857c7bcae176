"""Where what a query attended to ends up."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.doctor.laws.specimens import Attention, Cross, found, one, triangle
from tests.doctor.laws.styles import Einsum, Plain, assert_at


class MergesByAReshape(Plain):
    def merge(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), -1, self.width)


class WithoutProjection(MergesByAReshape):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Identity()


def test_heads_that_are_merged_across_positions() -> None:
    finding = one("outputs", MergesByAReshape)
    assert (finding.name, finding.severity) == ("head-merge", "bug")
    assert "comes from positions [0, 1, 2, 3]" in finding.evidence  # 4 heads x 5 positions x 4 features, in rows of 16
    assert_at(finding, Attention, "return self.out(self.merge(")
    finding = one("outputs", WithoutProjection)
    assert "the output at position 0 comes from the queries at positions [0, 1, 2, 3]" in finding.evidence


# Residuals.


class Windows(Attention):
    """Attention inside of windows of 4 tokens that are shifted by 2, and by so many back."""

    def __init__(self, back: int = 2) -> None:
        super().__init__(back=back)

    def forward(self, x: Tensor) -> Tensor:
        windows = torch.arange(x.shape[1]) // 4
        y = x.roll(-2, 1)
        return x + self.attend(y, y, windows[:, None] == windows).roll(self.back, 1)


class OfThePast(Attention):
    """Every token gets what the token before it attended to, and nothing of itself."""

    def forward(self, x: Tensor) -> Tensor:
        past = triangle(x.shape[1], x.shape[1])
        return x + nn.functional.pad(self.attend(x, x, past)[:, :-1], (0, 0, 1, 0))


class Axial(Attention):
    """Attention along the rows and along the columns of a map of 4 by 4, side by side."""

    grid = (4, 4)

    def __init__(self, turned: bool = True) -> None:
        super().__init__(turned=turned)

    def forward(self, x: Tensor) -> Tensor:
        b, n, m = x.shape
        rows = x.view(b * 4, 4, m)
        columns = x.view(b, 4, 4, m).transpose(1, 2).reshape(b * 4, 4, m)
        along, across = self.attend(rows, rows, None), self.attend(columns, columns, None).view(b, 4, 4, m)
        across = across.transpose(1, 2) if self.turned else across
        return x + along.reshape(b, n, m) + across.reshape(b, n, m)


@pytest.mark.parametrize("module", [Windows(back=-2), Axial(turned=False)])
def test_outputs_of_other_queries(module: nn.Module) -> None:
    finding = one("outputs", module)
    assert (finding.name, finding.severity) == ("output-misplaced", "bug")


class SequenceFirst(Einsum):
    """x: [seq, batch, width]."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(self.qkv(x))
        weights = (torch.einsum("qbhd,kbhd->bhqk", q, k) / 2).softmax(-1)
        return self.proj(torch.einsum("bhqk,kbhd->qbhd", weights, v).flatten(2))


@pytest.mark.parametrize("module", [Plain, Einsum, Cross, SequenceFirst, Windows, OfThePast, Axial])
def test_a_healthy_one(module: type[nn.Module]) -> None:
    assert found("outputs", module) == []
