"""Fill values that scores can beat."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable
from tests.doctor.laws.specimens import Attention, Causal, found, one, seeded


class Filled(Attention):
    """padding_mask: [B, K], True = a real token"""

    value = -1e9

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return self.attend(x, x, self.both(None, padding_mask))

    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return scores if allowed is None else scores.masked_fill(~allowed, self.value)


class Hundred(Filled):
    value = -100.0


class TenThousand(Filled):
    value = -1e4


class ByHand(TenThousand):
    def normalise(self, scores: Tensor) -> Tensor:
        e = (scores - scores.amax(-1, keepdim=True)).exp()
        return e / e.sum(-1, keepdim=True)


class CausalTwenty(Causal):
    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return scores + (~allowed) * -20.0 if allowed is not None else scores


def test_a_fill_that_ordinary_scores_beat() -> None:
    finding = one("fills", seeded(Hundred))
    assert (finding.name, finding.severity) == ("mask-fill-too-small", "bug")
    assert finding.numbers["fill"] == -100
    assert finding.numbers["scores"] > 50
    assert finding.numbers["factor"] > 1
    assert finding.where.code == "return scores.softmax(-1)"
    finding = one("fills", seeded(CausalTwenty))
    assert finding.severity == "bug"
    assert "its causal mask" in finding.evidence


def test_a_fill_that_takes_large_scores_is_a_risk() -> None:
    finding = one("fills", seeded(TenThousand))
    assert (finding.severity, finding.numbers["fill"]) == ("risk", -1e4)
    assert finding.numbers["factor"] >= 100
    assert one("fills", seeded(ByHand)).severity == "risk"


def test_healthy_ones() -> None:
    for module in (seeded(Filled), seeded(Attention), seeded(Causal), nn.MultiheadAttention(16, 4)):
        assert found("fills", module) == []
    with pytest.raises(NotApplicable, match="no working mask argument"):
        found("fills", nn.Linear(16, 16))
