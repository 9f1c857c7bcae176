"""Heads of a rotated and a plain part."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable
from tests.doctor.checks.specimens import Attention, found, one, seeded


def rotated(x: Tensor) -> Tensor:
    """[..., N, 4], in halves."""
    angle = torch.arange(x.shape[-2])[:, None] * torch.tensor([1.0, 0.1])
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


class Latent(nn.Module):
    """4 heads of 6 plain and 4 rotated features; the rotated keys are shared."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.down, self.up = nn.Linear(16, 40), nn.Linear(16, 12), nn.Linear(8, 40)
        self.out = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        plain, turned = self.q(x).view(b, n, 4, 10).transpose(1, 2).split([6, 4], -1)
        latent, shared = self.down(x).split([8, 4], -1)
        keys, v = self.up(latent).view(b, n, 4, 10).transpose(1, 2).split([6, 4], -1)
        q = self.query(plain, rotated(turned))
        k = self.key(keys, rotated(shared[:, None]).expand(-1, 4, -1, -1))
        return self.out(((q @ k.mT * 10**-0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))

    def query(self, plain: Tensor, turned: Tensor) -> Tensor:
        return torch.cat([plain, turned], -1)

    def key(self, plain: Tensor, turned: Tensor) -> Tensor:
        return torch.cat([plain, turned], -1)


class KeysTheOtherWay(Latent):
    def key(self, plain: Tensor, turned: Tensor) -> Tensor:
        return torch.cat([turned, plain], -1)


class RotatedFirst(KeysTheOtherWay):
    """Both the other way."""

    def query(self, plain: Tensor, turned: Tensor) -> Tensor:
        return torch.cat([turned, plain], -1)


def test_parts_in_different_orders() -> None:
    finding = one("rope_parts", seeded(KeysTheOtherWay))
    assert (finding.name, finding.severity) == ("rope-asymmetric", "bug")
    assert "6 to 9 of the queries depend on the position, but 0 to 3 of the keys" in finding.evidence


def test_healthy_ones() -> None:
    for kind in (Latent, RotatedFirst):
        assert found("rope_parts", seeded(kind)) == []
    with pytest.raises(NotApplicable):
        found("rope_parts", seeded(Attention))
