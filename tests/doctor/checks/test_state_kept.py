"""Calls that change what later calls give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.doctor.checks.specimens import Attention, Causal, found, one, seeded


class KeepsItsKeys(Attention):
    """The keys of the first call serve all of the same size."""

    kept: Tensor | None = None

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        if self.kept is None or self.kept.shape != memory.shape:
            self.kept = memory.detach()
        return super().attend(x, self.kept, allowed)


class StaleMask(Attention):
    """The causal mask is made in the first call, for its length, and cut for shorter ones from the wrong corner."""

    mask: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        if self.mask is None or len(self.mask) < n:
            self.mask = torch.ones(n, n, dtype=torch.bool).tril()
        return self.attend(x, x, self.mask[-n:, :n])


class StaleScale(Attention):
    """Divides by the root of the length of the first call."""

    length: int = 0

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        self.length = self.length or q.shape[2]
        return super().score(q, k) * (q.shape[2] / self.length)


class Forgetful(KeepsItsKeys):
    """Keeps its keys until it is told not to."""

    def reset_cache(self) -> None:
        self.kept = None


class LosesItsDropout(Attention):
    def __init__(self) -> None:
        super().__init__(dropout=0.2)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            self.dropout.p = 0.0
        return self.attend(x, x, None)


class TrainsOnce(Attention):
    """A call in train mode leaves another scale behind."""

    factor = 1.0

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        if self.training:
            self.factor = 2.0
        return super().score(q, k) * self.factor


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (KeepsItsKeys, "another input of the same size"),
        (StaleMask, "a longer input"),
        (StaleScale, "a longer input"),
        (TrainsOnce, "a call in train mode"),
    ],
)
def test_state_of_an_earlier_call(module: type[nn.Module], said: str) -> None:
    finding = one("state_kept", seeded(module))
    assert (finding.name, finding.severity) == ("state-kept", "bug")
    assert f"after {said}, the same call gives another output than alone" in finding.evidence


def test_a_method_that_resets_it_makes_it_a_risk() -> None:
    finding = one("state_kept", seeded(Forgetful))
    assert (finding.name, finding.severity) == ("state-kept", "risk")
    assert "reset_cache() may be meant" in finding.evidence


def test_a_dropout_that_one_call_in_eval_mode_ends() -> None:
    finding = one("state_kept", seeded(LosesItsDropout))
    assert (finding.name, finding.severity) == ("train-eval-differ", "bug")
    assert "after one call in eval mode it no longer is" in finding.evidence


# Healthy.


class GrowsItsMask(Attention):
    """A table that is made for the longest input so far, and cut for others."""

    mask: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        if self.mask is None or len(self.mask) < n:
            self.mask = torch.ones(n, n, dtype=torch.bool).tril()
        return self.attend(x, x, self.mask[:n, :n])


class KeepsItsWeights(Attention):
    """To look at, not to use again."""

    last: Any = None

    def normalise(self, scores: Tensor) -> Tensor:
        self.last = scores.softmax(-1)
        return self.last


class Counts(Attention):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.attend(x, x, None)


class WithDropout(Attention):
    def __init__(self) -> None:
        super().__init__(dropout=0.2)


class Normed(Attention):
    """Batch norm counts in train mode, by design."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(self.norm(x.mT).mT, x, None)


@pytest.mark.parametrize("module", [Attention, Causal, GrowsItsMask, KeepsItsWeights, Counts, WithDropout, Normed])
def test_a_healthy_one(module: type[nn.Module]) -> None:
    assert found("state_kept", seeded(module)) == []
