"""Norms of queries and keys that act on something else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable
from tests.doctor.checks.specimens import Attention, found, one, seeded


class Normed(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.q_norm, self.k_norm = nn.LayerNorm(16), nn.LayerNorm(16)

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = map(self.split, self.norms(self.q(x), self.k(memory), self.v(memory)))
        return self.out(self.merge(self.fill(self.score(q, k), allowed).softmax(-1) @ v))

    def norms(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q_norm(q), self.k_norm(k), v


class Twice(Normed):
    def norms(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q_norm(q), self.q_norm(k), v


class Crossed(Normed):
    def norms(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.k_norm(q), self.q_norm(k), v


class KeysAndValues(Normed):
    def norms(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return q, self.q_norm(k), self.k_norm(v)


class Before(Normed):
    """On the inputs of the projections."""

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        x, memory = self.q_norm(x), self.k_norm(memory)
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        return self.out(self.merge(self.fill(self.score(q, k), allowed).softmax(-1) @ v))


class Off(Normed):
    """Neither is used."""

    def norms(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return q, k, v


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (Twice, "k_norm is never called, and q_norm is called twice"),
        (Crossed, "q_norm acts on the keys, and the queries do not depend on it"),
        (KeysAndValues, "q_norm acts on the keys, and the queries do not depend on it"),
    ],
)
def test_on_another_tensor(module: type[nn.Module], said: str) -> None:
    finding = one("norm_swapped", seeded(module))
    assert (finding.name, finding.severity) == ("norm-swapped", "bug")
    assert finding.evidence == said


@pytest.mark.parametrize("module", [Normed, Before, Off])
def test_a_healthy_one(module: type[nn.Module]) -> None:
    assert found("norm_swapped", seeded(module)) == []


def test_without_norms() -> None:
    torch.manual_seed(0)
    with pytest.raises(NotApplicable):
        found("norm_swapped", Attention())
