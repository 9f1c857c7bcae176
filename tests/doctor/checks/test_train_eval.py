"""Train and eval mode that compute different things."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.patient import NotChecked
from tests.doctor.checks.specimens import Attention, found, one, seeded


class ScalesInTraining(Attention):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k) * (2 if self.training else 1)


class ForgetsTheMaskInTraining(Attention):
    """With dropout it takes a path of its own."""

    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return scores if self.training and self.dropout.p else super().fill(scores, allowed)


class Normed(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.norm(x.transpose(1, 2)).transpose(1, 2))


class RandomInTraining(Attention):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k) + (torch.randn(()) if self.training else 0) * k.sum(-1)[..., None, :]


class DropsByItsOwnNumber(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.attn_dropout = 0.5

    def normalise(self, scores: Tensor) -> Tensor:
        keep = (torch.rand_like(scores) >= self.attn_dropout).float() if self.training else torch.ones_like(scores)
        return scores.softmax(-1) * keep / (1 - self.attn_dropout * self.training)


class AddsItsMask(Attention):
    """mask: [B, Q, K], bool, True = forbidden, or float, added to the attention scores."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (self.split(w(x)) for w in (self.q, self.k, self.v))
        scores = self.score(q, k) if mask is None else self.added(self.score(q, k), mask[:, None])
        return self.out(self.merge(scores.softmax(-1) @ v))

    def added(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores + mask if mask.is_floating_point() else scores.masked_fill(mask.bool(), -1e9)


class BooleanInEval(AddsItsMask):
    """A path for inference takes every number but 0 for a mask."""

    def added(self, scores: Tensor, mask: Tensor) -> Tensor:
        return super().added(scores, mask) if self.training else scores.masked_fill(mask.bool(), -1e9)


def test_an_additive_mask_that_becomes_boolean() -> None:
    finding = one("train_eval", seeded(BooleanInEval))
    assert (finding.name, finding.severity) == ("train-eval-differ", "bug")
    assert finding.evidence.startswith("with numbers from -1 to 0 in mask")
    assert found("train_eval", seeded(AddsItsMask)) == []


def test_a_scale_of_training_only() -> None:
    finding = one("train_eval", seeded(ScalesInTraining))
    assert (finding.name, finding.severity) == ("train-eval-differ", "bug")
    assert finding.numbers["change"] > 0.05
    assert finding.evidence.startswith("without a mask")


def test_a_path_without_the_mask() -> None:
    finding = one("train_eval", seeded(ForgetsTheMaskInTraining, dropout=0.1))
    assert finding.severity == "bug"
    assert finding.evidence.startswith("with a mask")


def test_batch_norm_is_a_note() -> None:
    finding = one("train_eval", seeded(Normed))
    assert finding.severity == "note"
    assert "1 batch norms" in finding.evidence


def test_chance_that_cannot_be_stilled() -> None:
    with pytest.raises(NotChecked, match="random"):
        found("train_eval", seeded(RandomInTraining))


@pytest.mark.parametrize("kind", [Attention, DropsByItsOwnNumber])
def test_a_healthy_one(kind: type[Attention]) -> None:
    assert found("train_eval", seeded(kind)) == []
    assert found("train_eval", seeded(Attention, dropout=0.5)) == []
    assert functional.dropout is torch.nn.functional.dropout  # nothing stays patched
