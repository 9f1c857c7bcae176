"""Fill values that scores can beat."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable
from tests.doctor.laws.specimens import Causal, Padded, found, one, seeded

LAW = "fills"


class Filled(Padded):
    """padding_mask: [B, K], True = a real token"""

    value = -1e9

    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return scores if allowed is None else scores.masked_fill(~allowed, self.value)


def by_hand(scores: Tensor) -> Tensor:
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def test_a_fill_that_ordinary_scores_beat() -> None:
    finding = one(LAW, seeded(Filled, value=-10.0))
    assert (finding.name, finding.severity, finding.numbers["fill"]) == ("mask-fill-too-small", "bug", -10)
    assert finding.where.code == "return scores.softmax(-1)"
    finding = one(LAW, seeded(Causal, fill=lambda scores, allowed: scores + ~allowed * -10.0))
    assert finding.severity == "bug"
    assert "its causal mask" in finding.evidence


def test_a_fill_that_takes_large_scores_is_a_risk() -> None:
    finding = one(LAW, seeded(Filled, value=-100.0))  # as Swin's own
    assert (finding.severity, finding.numbers["factor"] >= 10) == ("risk", True)
    assert finding.numbers["scores"] > 50
    finding = one(LAW, seeded(Filled, value=-1e4))
    assert (finding.severity, finding.numbers["fill"]) == ("risk", -1e4)
    assert finding.numbers["factor"] >= 100
    assert one(LAW, seeded(Filled, value=-1e4, normalise=by_hand)).severity == "risk"


def test_healthy_ones() -> None:
    for module in (seeded(Filled), seeded(Causal), nn.MultiheadAttention(16, 4)):
        assert found(LAW, module) == []
    with pytest.raises(NotApplicable, match="no working mask argument"):
        found(LAW, nn.Linear(16, 16))
