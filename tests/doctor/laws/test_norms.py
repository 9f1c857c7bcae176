"""Norms over positions or heads, and of another tensor."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.laws.norms import changed, mixed_rows, steady
from tests.doctor.laws.specimens import Attention, found, one, seeded

LAW = "norms"


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


@pytest.mark.parametrize("module", [OverPositions, RmsOverPositions, ByHandOverPositions])
def test_statistics_of_several_positions(module: type[nn.Module]) -> None:
    finding = one(LAW, seeded(module))
    assert (finding.name, finding.severity) == ("norm-axis", "bug")
    assert "after a change of position 2 alone" in finding.evidence


def test_statistics_of_several_heads() -> None:
    finding = one(LAW, seeded(OverHeads))
    assert (finding.name, finding.severity) == ("norm-axis", "bug")
    assert "normalised over the heads" in finding.evidence


# Healthy.


class Rms(Normed):
    def norm(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


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


class OfEach(Attention):
    """A norm of the queries, and one of the keys."""

    def __init__(self) -> None:
        super().__init__()
        self.q_norm, self.k_norm = nn.LayerNorm(16), nn.LayerNorm(16)

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = map(self.split, self.norms(self.q(x), self.k(memory), self.v(memory)))
        return self.out(self.merge(self.fill(self.score(q, k), allowed).softmax(-1) @ v))

    def norms(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q_norm(q), self.k_norm(k), v


class Before(OfEach):
    """On the inputs of the projections."""

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        return Attention.attend(self, self.q_norm(x), self.k_norm(memory), allowed)


class Crossed(OfEach):
    def norms(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.k_norm(q), self.q_norm(k), v


class KeysAndValues(OfEach):
    def norms(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return q, self.q_norm(k), self.k_norm(v)


@pytest.mark.parametrize("module", [Crossed, KeysAndValues])
def test_a_norm_of_another_tensor(module: type[nn.Module]) -> None:
    finding = one(LAW, seeded(module))
    assert (finding.name, finding.severity) == ("norm-swapped", "bug")
    assert finding.evidence == "q_norm acts on the keys, and the queries do not depend on it"


@pytest.mark.parametrize("module", [Attention, Normed, Rms, PreNorm, Pooled, Grouped, OfEach, Before])
def test_a_healthy_one(module: type[nn.Module]) -> None:
    assert found(LAW, seeded(module)) == []


def test_what_is_seen_in_vectors() -> None:
    x = torch.ones(2, 3, 4)
    other = x.clone()
    other[:, 2] = 5.0
    assert mixed_rows(x, other, 2) == 0.0
    other[0, 1, 3] = 1.5
    assert mixed_rows(x, other, 2) == 0.5
    assert changed("qk", [x, x], [x.clone(), other]) == "k"
    y = torch.tensor([[3.0, 4.0], [5.0, 0.0]])
    assert (steady(y, 1), steady(y, 0)) == (True, False)
