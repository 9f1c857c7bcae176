"""Chance in eval mode."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.doctor.checks.specimens import Attention, found, one, seeded


class AlwaysDrops(Attention):
    def normalise(self, scores: Tensor) -> Tensor:
        return functional.dropout(scores.softmax(-1), 0.25)


class DropsInSdpa(Attention):
    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        return self.out(self.merge(functional.scaled_dot_product_attention(q, k, v, allowed, dropout_p=0.5)))


class DropsByHand(Attention):
    def normalise(self, scores: Tensor) -> Tensor:
        weights = scores.softmax(-1)
        return weights * (torch.rand_like(weights) > 0.1) / 0.9


class HidesDropout(Attention):
    """In a plain list eval() does not reach it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Dropout(0.125)]

    def normalise(self, scores: Tensor) -> Tensor:
        return self.layers[0](scores.softmax(-1))


class Noisy(Attention):
    def normalise(self, scores: Tensor) -> Tensor:
        return (scores + 0.1 * torch.randn_like(scores)).softmax(-1)


class Remembers(Attention):
    def normalise(self, scores: Tensor) -> Tensor:
        last, self.last = getattr(self, "last", 0.0), scores.detach().mean()
        return (scores * (1 + last)).softmax(-1)


class RemembersUntilReset(Remembers):
    def reset(self) -> None:
        self.last = 0.0


def test_dropout_that_does_not_ask_for_the_mode() -> None:
    finding = one("determinism", seeded(AlwaysDrops))
    assert (finding.name, finding.severity) == ("dropout-in-eval", "bug")
    assert finding.numbers["p"] == 0.25
    assert finding.numbers["change"] > 0.01
    assert "p = 0.25" in finding.evidence
    assert "the same" in finding.evidence
    assert finding.where.code == "return functional.dropout(scores.softmax(-1), 0.25)"


def test_dropout_of_the_fused_function() -> None:
    finding = one("determinism", seeded(DropsInSdpa))
    assert finding.numbers["p"] == 0.5
    assert "self.training" in finding.fix


def test_dropout_that_eval_does_not_reach() -> None:
    finding = one("determinism", seeded(HidesDropout))
    assert (finding.severity, finding.numbers["p"]) == ("bug", 0.125)


def test_dropout_by_hand_and_other_noise() -> None:
    assert one("determinism", seeded(DropsByHand)).severity == "bug"
    noisy = one("determinism", seeded(Noisy))
    assert (noisy.name, noisy.severity) == ("dropout-in-eval", "risk")
    assert "randn_like" in noisy.evidence


def test_a_call_that_remembers_the_last() -> None:
    finding = one("determinism", seeded(Remembers))
    assert (finding.name, finding.severity) == ("state-kept", "bug")
    finding = one("determinism", seeded(RemembersUntilReset))
    assert (finding.name, finding.severity) == ("state-kept", "risk")


def test_a_healthy_one() -> None:
    assert found("determinism", seeded(Attention, dropout=0.5)) == []
