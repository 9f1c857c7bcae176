"""Norms over positions or heads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.doctor.checks.specimens import Attention, found, one, seeded


class Normed(Attention):
    """Queries and keys are normalised."""

    def split(self, x: Tensor) -> Tensor:
        return super().split(x)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(self.norm(q), self.norm(k))

    def norm(self, x: Tensor) -> Tensor:
        return functional.normalize(x, dim=-1)


class OverPositions(Normed):
    def norm(self, x: Tensor) -> Tensor:
        return functional.normalize(x, dim=-2)


class OverHeads(Normed):
    def norm(self, x: Tensor) -> Tensor:
        return functional.normalize(x, dim=1)


class RmsOverPositions(Normed):
    def norm(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(2, keepdim=True) + 1e-6)


class ByHandOverPositions(Attention):
    """A layer norm of the input, with the statistics of the sequence."""

    def forward(self, x: Tensor) -> Tensor:
        x = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)
        return self.attend(x, x, None)


class OverTheWholeExample(Attention):
    def forward(self, x: Tensor) -> Tensor:
        x = functional.layer_norm(x, x.shape[1:])
        return self.attend(x, x, None)


@pytest.mark.parametrize("module", [OverPositions, RmsOverPositions, ByHandOverPositions, OverTheWholeExample])
def test_statistics_of_several_positions(module: type[nn.Module]) -> None:
    finding = one("norm_axis", seeded(module))
    assert (finding.name, finding.severity) == ("norm-axis", "bug")
    assert "after a change of position 2 alone" in finding.evidence


def test_statistics_of_several_heads() -> None:
    finding = one("norm_axis", seeded(OverHeads))
    assert (finding.name, finding.severity) == ("norm-axis", "bug")
    assert "normalised over the heads" in finding.evidence


# Healthy.


class Rms(Normed):
    def norm(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class BeforeTheSplit(Attention):
    """Over all features, as OLMo 2 does."""

    def split(self, x: Tensor) -> Tensor:
        return super().split(functional.rms_norm(x, (16,)))


class PreNorm(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attend(*(self.norm(x),) * 2, None)


class Pooled(Attention):
    """The mean of the sequence is added to every token."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + x.mean(1, keepdim=True)
        return self.attend(x, x, None)


class Grouped(Attention):
    """A group norm over positions, as in attention over images."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x.mT).mT
        return self.attend(x, x, None)


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = PreNorm(), PreNorm()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


@pytest.mark.parametrize("module", [Attention, Normed, Rms, BeforeTheSplit, PreNorm, Pooled, Grouped, TwoLayers])
def test_a_healthy_one(module: type[nn.Module]) -> None:
    assert found("norm_axis", seeded(module)) == []
