"""The order of coordinates of sampling points."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.patient import NotApplicable
from tests.doctor.checks.specimens import found, one, seeded
from tests.doctor.checks.styles import Plain


class Deformable(nn.Module):
    """x: [B, C, H, W]; keys and values are sampled at a grid that is moved by offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.offset, self.q, self.kv, self.out = (nn.Conv2d(16, n, 1) for n in (2, 16, 32, 16))

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        y, z = torch.meshgrid(torch.linspace(-1, 1, h), torch.linspace(-1, 1, w), indexing="ij")
        offsets = self.offset(x).tanh().permute(0, 2, 3, 1) / 8
        sampled = functional.grid_sample(x, self.grid(z, y) + offsets, align_corners=True)
        q, (k, v) = self.q(x).flatten(2).mT, (t.flatten(2).mT for t in self.kv(sampled).chunk(2, 1))
        return self.out(((q @ k.mT / 4).softmax(-1) @ v).mT.reshape(b, c, h, w))

    def grid(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.stack((x, y), -1)


class RowsFirst(Deformable):
    def grid(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.stack((y, x), -1)


def test_coordinates_in_the_other_order() -> None:
    finding = one("sampling_order", seeded(RowsFirst))
    assert (finding.name, finding.severity) == ("sampling-transposed", "bug")
    assert "they are (y, x)" in finding.evidence


def test_a_healthy_one() -> None:
    assert found("sampling_order", seeded(Deformable)) == []


def test_no_offsets() -> None:
    with pytest.raises(NotApplicable, match="no learned offsets"):
        found("sampling_order", seeded(Plain))


class AtPoints(nn.Module):
    """x: [B, N, M]; reference_points: [B, N, 2] in [0, 1]; feature: [B, 16, 8, 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets, self.out = nn.Linear(16, 2), nn.Linear(16, 16)
        self.register_buffer("feature", torch.randn(1, 16, 8, 8))

    def forward(self, x: Tensor, reference_points: Tensor) -> Tensor:
        points = self.mapped(reference_points + self.offsets(x).tanh() / 8)[:, :, None]
        sampled = functional.grid_sample(self.feature.expand(len(x), -1, -1, -1), points, align_corners=False)
        weights = (x @ sampled[..., 0]).softmax(-1)
        return x + self.out(weights @ sampled[..., 0].mT)

    def mapped(self, points: Tensor) -> Tensor:
        return 2 * points - 1


class Unmapped(AtPoints):
    """x: [B, N, M]; reference_points: [B, N, 2] in [0, 1]."""

    def mapped(self, points: Tensor) -> Tensor:
        return points


def test_points_of_another_range() -> None:
    assert "from 0 to 1 come to grid_sample as they are" in one("sampling_order", seeded(Unmapped)).evidence
    assert found("sampling_order", seeded(AtPoints)) == []


class OfTokens(nn.Module):
    """x: [B, H * W, M] row by row; each token samples two points around its own place."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets, self.weights, self.v = nn.Linear(16, 4), nn.Linear(16, 2), nn.Linear(16, 16)

    def forward(self, x: Tensor, H: int, W: int) -> Tensor:
        b, n, m = x.shape
        rows, columns = torch.meshgrid(torch.linspace(-1, 1, H), torch.linspace(-1, 1, W), indexing="ij")
        places = self.places(rows, columns).reshape(1, n, 1, 2)
        grid = places + self.offsets(x).view(b, n, 2, 2).tanh() / 9
        value = self.v(x).mT.reshape(b, m, H, W)
        sampled = functional.grid_sample(value, grid, align_corners=True)
        return (sampled * self.weights(x).softmax(-1)[:, None]).sum(-1).mT

    def places(self, rows: Tensor, columns: Tensor) -> Tensor:
        return torch.stack((columns, rows), -1)


class OfTokensRowsFirst(OfTokens):
    def places(self, rows: Tensor, columns: Tensor) -> Tensor:
        return torch.stack((rows, columns), -1)


def test_points_of_tokens() -> None:
    assert one("sampling_order", seeded(OfTokensRowsFirst)).name == "sampling-transposed"
    assert found("sampling_order", seeded(OfTokens)) == []
