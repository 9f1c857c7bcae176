"""Norms over positions or heads, and of another tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.doctor.laws.specimens import Attention, found, one
from tests.doctor.laws.styles import Plain

torch.manual_seed(0)  # for the modules that are made here


class Normed(Plain):
    """Queries and keys are normalised."""

    def __init__(self, norm: Any) -> None:
        super().__init__(norm=norm)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(self.norm(q), self.norm(k))


class OfInputs(Plain):
    """The input is normalised."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Any:
        x = self.norm(x)
        return self.attend(x, x, None)


def rms(x: Tensor, dim: int) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(dim, keepdim=True) + 1e-6)


def standard(x: Tensor) -> Tensor:
    return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)


class OverChannels(nn.GroupNorm):
    """A group norm over positions, as in attention over images."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mT).mT


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Normed(lambda x: functional.normalize(x, dim=-2)), "after a change of position 2 alone"),
        (Normed(lambda x: rms(x, 2)), "after a change of position 2 alone"),
        (OfInputs(standard), "after a change of position 2 alone"),
        (Normed(lambda x: functional.normalize(x, dim=1)), "normalised over the heads"),
    ],
)
def test_statistics_of_others(module: nn.Module, words: str) -> None:
    finding = one("norms", module)
    assert (finding.name, finding.severity) == ("norm-axis", "bug")
    assert words in finding.evidence


class OfEach(Attention):
    """A norm of the queries, and one of the keys."""

    def __init__(self) -> None:
        super().__init__()
        self.q_norm, self.k_norm = nn.LayerNorm(16), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(self.split, self.norms(self.q(x), self.k(x), self.v(x)))
        return self.out(self.merge(self.score(q, k).softmax(-1) @ v))

    def norms(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q_norm(q), self.k_norm(k), v


class BeforeTheProjections(OfEach):
    def forward(self, x: Tensor) -> Tensor:
        return Attention.attend(self, self.q_norm(x), self.k_norm(x), None)


class Crossed(OfEach):
    def norms(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.k_norm(q), self.q_norm(k), v


class KeysAndValues(OfEach):
    def norms(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return q, self.q_norm(k), self.k_norm(v)


@pytest.mark.parametrize("module", [Crossed, KeysAndValues])
def test_a_norm_of_another_tensor(module: type[nn.Module]) -> None:
    finding = one("norms", module)
    assert (finding.name, finding.severity) == ("norm-swapped", "bug")
    assert finding.evidence == "q_norm acts on the keys, and the queries do not depend on it"


@pytest.mark.parametrize(
    "module",
    [
        *(Attention(), Normed(lambda x: functional.normalize(x, dim=-1)), Normed(lambda x: rms(x, -1))),
        *(OfInputs(nn.LayerNorm(16)), OfInputs(OverChannels(4, 16)), OfInputs(lambda x: x + x.mean(1, keepdim=True))),
        *(OfEach(), BeforeTheProjections()),
    ],
)
def test_a_healthy_one(module: nn.Module) -> None:
    assert found("norms", module) == []
