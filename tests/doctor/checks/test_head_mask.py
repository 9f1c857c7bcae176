"""Masks of heads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headwise.doctor.patient import NotChecked
from tests.doctor.checks.specimens import Attention, found, one, seeded


class OfWeights(Attention):
    """head_mask: [H] or [1, H, 1, 1], 1 = the head is kept."""

    def forward(self, x: Tensor, head_mask: Tensor | None = None) -> Tensor:
        kept = torch.ones(self.heads, device=x.device) if head_mask is None else head_mask
        q, k, v = (self.split(w(x)) for w in (self.q, self.k, self.v))
        return self.out(self.merge(self.weigh(self.score(q, k), kept.view(-1, 1, 1)) @ v))

    def weigh(self, scores: Tensor, kept: Tensor) -> Tensor:
        return scores.softmax(-1) * kept


class OfScores(OfWeights):
    def weigh(self, scores: Tensor, kept: Tensor) -> Tensor:
        return (scores * kept).softmax(-1)


class Unread(OfWeights):
    def weigh(self, scores: Tensor, kept: Tensor) -> Tensor:
        return scores.softmax(-1)


class OneHides(OfWeights):
    """Another convention, which no call without a mask agrees with."""

    def forward(self, x: Tensor, head_mask: Tensor | None = None) -> Tensor:
        return super().forward(x, None if head_mask is None else 1 - head_mask)


@pytest.mark.parametrize("kind", [OfScores, Unread])
def test_a_masked_head_that_still_attends(kind: type[OfWeights]) -> None:
    finding = one("head_mask", seeded(kind))
    assert (finding.name, finding.severity) == ("head-mask-ignored", "bug")
    assert "head_mask = 0 for all 4 heads" in finding.evidence
    assert finding.numbers["change"] > 0.01


def test_healthy_ones() -> None:
    assert found("head_mask", seeded(OfWeights)) == []
    with pytest.raises(NotChecked, match="the form of head_mask"):
        found("head_mask", seeded(OneHides))
    with pytest.raises(NotChecked, match="no head mask"):
        found("head_mask", seeded(Attention))
