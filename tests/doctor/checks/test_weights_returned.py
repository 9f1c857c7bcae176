"""The weights that come back."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from headwise.doctor.patient import NotChecked
from tests.doctor.checks.specimens import Attention, found, one, seeded


class Shows(Attention):
    """padding_mask: [B, K], True = a real token"""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        q, k, v = (self.split(w(x)) for w in (self.q, self.k, self.v))
        weights = self.weigh(self.score(q, k), self.both(None, padding_mask))
        return self.out(self.merge(weights @ v)), self.shown(weights)

    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return self.fill(scores, allowed).softmax(-1)

    def shown(self, weights: Tensor) -> Tensor:
        return weights


class Averages(Shows):
    def shown(self, weights: Tensor) -> Tensor:
        return weights.mean(1)


class WrongAxis(Shows):
    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return self.fill(scores, allowed).softmax(-2)


class MasksWeights(Shows):
    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        weights = scores.softmax(-1)
        return weights if allowed is None else weights * allowed


def test_weights_that_are_averaged_unasked() -> None:
    finding = one("weights_returned", seeded(Averages))
    assert (finding.name, finding.severity, finding.numbers["heads"]) == ("weights-averaged", "risk", 4)
    assert "[3, 5, 5]" in finding.evidence
    torchs = one("weights_returned", nn.MultiheadAttention(16, 4))
    assert torchs.severity == "note"
    assert "average_attn_weights" in torchs.evidence


def test_columns_that_add_up_to_one() -> None:
    finding = one("weights_returned", seeded(WrongAxis))
    assert (finding.name, finding.severity) == ("softmax-axis", "bug")
    assert finding.numbers["least"] < 0.95 < 1.05 < finding.numbers["most"]


def test_weights_that_are_masked_after_the_softmax() -> None:
    finding = one("weights_returned", seeded(MasksWeights))
    assert (finding.name, finding.severity) == ("mask-after-softmax", "bug")
    assert 0.1 < finding.numbers["least"] < 0.9


def test_healthy_ones() -> None:
    assert found("weights_returned", seeded(Shows)) == []
    assert found("weights_returned", nn.MultiheadAttention(16, 1)) == []
    with pytest.raises(NotChecked, match="no weights"):
        found("weights_returned", seeded(Attention))
