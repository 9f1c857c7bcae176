"""Rotations by rows and columns of a map."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable
from tests.doctor.laws.specimens import found, one, seeded
from tests.doctor.laws.styles import Plain


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """x [B, H, N, D] by angles [N, D / 2], in halves."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


class OnAMap(nn.Module):
    """x: [B, H * W, M] row by row; grid: (H, W)."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 2
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        return self.attend(x, *grid)

    def attend(self, x: Tensor, height: int, width: int) -> Tensor:
        row, column = self.places(torch.arange(height * width), height, width)
        rates = torch.tensor([1.0, 0.3])
        angles = torch.cat([row[:, None] * rates, column[:, None] * rates], -1)
        q, k, v = (z.unflatten(-1, (2, 8)).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        weights = (turned(q, angles) @ turned(k, angles).mT / 8**0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))

    def places(self, at: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
        return at // width, at % width


class ByTheHeight(OnAMap):
    def places(self, at: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
        return at // height, at % height


class ColumnsByTheHeight(OnAMap):
    def places(self, at: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
        return at // width, at % height


class InOneRow(OnAMap):
    """Rotations of a sequence."""

    def places(self, at: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
        return at, at


class Stated(ColumnsByTheHeight):
    """Its map is that of the constructor."""

    def __init__(self, grid_size: tuple[int, int] = (3, 7)) -> None:
        super().__init__()
        self.height, self.width = grid_size
        self.register_buffer("table", torch.zeros(21, 1))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.attend(x + self.table, self.height, self.width)


@pytest.mark.parametrize("module", [ByTheHeight, ColumnsByTheHeight])
def test_the_height_in_the_place_of_the_width(module: type[nn.Module]) -> None:
    finding = one("grid", seeded(module))
    assert (finding.name, finding.severity) == ("grid-transposed", "bug")
    assert (finding.numbers["height"], finding.numbers["width"]) == (4, 6)
    assert "column = i % 4" in finding.evidence


def test_a_map_that_the_constructor_states() -> None:
    finding = one("grid", seeded(Stated))
    assert "row = i // 7, column = i % 3" in finding.evidence


@pytest.mark.parametrize("module", [OnAMap, InOneRow])
def test_healthy_ones(module: type[nn.Module]) -> None:
    assert found("grid", seeded(module)) == []


def test_a_sequence() -> None:
    with pytest.raises(NotApplicable, match="not told the sides"):
        found("grid", seeded(Plain))
