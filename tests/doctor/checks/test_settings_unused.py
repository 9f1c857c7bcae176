"""A soft cap or a scale without effect."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.doctor.checks.specimens import found, one, seeded
from tests.doctor.checks.styles import Plain


class Capped(Plain):
    def __init__(self, *, applied: bool = True) -> None:
        super().__init__()
        self.softcap, self.applied = 5.0, applied

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        scores = super().score(q, k) / self.softcap
        return (scores.tanh() if self.applied else scores) * self.softcap


class Latent(nn.Module):
    """The scores are the sum of two products, so that their factor is not measured."""

    def __init__(self, *, applied: bool = True) -> None:
        super().__init__()
        self.softmax_scale, self.applied = 16**-0.5, applied
        self.q, self.r, self.k, self.s, self.v, self.out = (nn.Linear(16, 16) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.einsum("bqd,bkd->bqk", self.q(x), self.k(x)) + torch.einsum("bqd,bkd->bqk", self.r(x), self.s(x))
        scores = scores * self.softmax_scale if self.applied else scores
        return self.out(scores.softmax(-1) @ self.v(x))


class OfOneToken(Latent):
    """One key has the weight 1, whatever its score is."""

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x.mean(1, keepdim=True))


def test_a_soft_cap() -> None:
    finding = one("settings_unused", seeded(lambda: Capped(applied=False)))
    assert (finding.name, finding.severity) == ("softcap-ignored", "bug")
    assert found("settings_unused", seeded(Capped)) == []


def test_a_scale() -> None:
    finding = one("settings_unused", seeded(lambda: Latent(applied=False)))
    assert (finding.name, finding.severity) == ("wrong-scale", "bug")
    assert found("settings_unused", seeded(Latent)) == []
    assert found("settings_unused", seeded(OfOneToken)) == []
