"""Heads that are alike, idle or 0."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor import diagnose
from tests.doctor.checks.specimens import Attention, found, one, seeded


class OneWeight(Attention):
    """All heads are given the weights of the first."""

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        weights = self.normalise(self.fill(self.score(q, k), allowed))
        return self.out(self.merge(weights[:, :1] @ v))


def copied_slices() -> nn.Module:
    """The second half of the heads is a copy of the first."""
    module = Attention()
    with torch.no_grad():
        for part in (module.q, module.k, module.v):
            part.weight[8:] = part.weight[:8]
            part.bias[8:] = part.bias[:8]
    return module


def zero(which: str, at: slice = slice(None)) -> nn.Module:
    module = Attention()
    with torch.no_grad():
        part = getattr(module, which)
        part.weight[at] = 0
        part.bias[at] = 0
    return module


class BeginsAtZero(Attention):
    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.q.weight)
        nn.init.zeros_(self.q.bias)


def test_copied_heads() -> None:
    finding = one("heads_alike", copied_slices())
    assert (finding.name, finding.severity) == ("projection-reused", "bug")
    assert "0, 2; 1, 3 have the same" in finding.evidence


def test_weights_that_meet_no_values() -> None:
    finding = one("heads_alike", seeded(OneWeight))
    assert (finding.name, finding.severity) == ("head-idle", "bug")
    assert "3 of 4 heads (1, 2, 3)" in finding.evidence


@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_a_projection_of_zeros(which: str) -> None:
    finding = one("heads_alike", zero(which))
    assert (finding.name, finding.severity) == ("projection-zero", "bug")
    assert f"{which}.weight" in finding.evidence
    assert [x.name for x in diagnose(zero(which)).bugs] == ["projection-zero"]


def test_zeros_that_the_class_sets() -> None:
    finding = one("heads_alike", seeded(BeginsAtZero))
    assert (finding.name, finding.severity) == ("projection-zero", "risk")


# Healthy.


class SharedKeys(Attention):
    """One key and value head for all."""

    def __init__(self) -> None:
        super().__init__()
        self.k, self.v = nn.Linear(16, 4), nn.Linear(16, 4)

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, 4).transpose(1, 2).expand(-1, self.heads, -1, -1)


class InTwoParts(Attention):
    """Heads meet their values in two products."""

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        weights = self.normalise(self.fill(self.score(q, k), allowed))
        return self.out(self.merge(torch.cat([weights[:, :2] @ v[:, :2], weights[:, 2:] @ v[:, 2:]], 1)))


class ZeroOutput(Attention):
    """The output projection begins at 0, as in many residual blocks."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.out.weight)


@pytest.mark.parametrize("module", [Attention, SharedKeys, InTwoParts, ZeroOutput])
def test_a_healthy_one(module: type[nn.Module]) -> None:
    assert found("heads_alike", seeded(module)) == []


def test_one_head_of_zeros_is_none_of_its_business() -> None:
    assert found("heads_alike", zero("q", slice(0, 4))) == []


class Slices(Attention):
    """Splits the input, then projects each slice."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(self.split(x)) for layer in (self.q, self.k, self.v))
        return self.out(self.merge(self.score(q, k).softmax(-1) @ v))


class SlicesOnPurpose(Slices):
    """All heads use the same three matrices."""


class Narrow(Attention):
    """One head for keys and values: narrow layers that read the whole width."""

    def __init__(self) -> None:
        super().__init__()
        self.k, self.v = nn.Linear(16, 4), nn.Linear(16, 4)

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.k(memory)[:, None], self.v(memory)[:, None]
        return self.out(self.merge(self.score(q, k).softmax(-1) @ v))


def test_one_small_projection_for_all_slices() -> None:
    finding = one("heads_alike", seeded(Slices))
    assert (finding.name, finding.severity) == ("projection-reused", "bug")
    assert "q, k, v take 4 of the input's numbers at a time: all 4 heads share them" in finding.evidence
    assert found("heads_alike", seeded(SlicesOnPurpose)) == []
    assert found("heads_alike", seeded(Narrow)) == []


class OtherWidth(nn.Module):
    """x: [B, N, 32], memory: [B, K, 16]: the layers of the memory read all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(32, 32), nn.Linear(16, 32), nn.Linear(16, 32)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (4, 8)).transpose(1, 2) for y in (self.q(x), self.k(memory), self.v(memory)))
        return ((q @ k.mT / 8**0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)


def test_a_memory_that_is_narrower_is_no_slice() -> None:
    assert found("heads_alike", seeded(OtherWidth)) == []
