"""Masks with which no call gives numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable
from tests.doctor.checks.specimens import Attention, found, seeded
from tests.doctor.checks.styles import assert_at


class FillsWeights(Attention):
    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        weights = self.score(q, k).softmax(-1)
        if allowed is not None:
            weights = weights.masked_fill(~allowed, -torch.inf)
        return self.out(self.merge(weights @ v))


class AddsToWeights(nn.Module):
    """mask: [B, K], True = padding."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Attention()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        inner = self.inner
        q, k, v = (inner.split(w(x)) for w in (inner.q, inner.k, inner.v))
        weights = inner.score(q, k).softmax(-1)
        if mask is not None:
            weights = weights + torch.zeros(mask.shape).masked_fill(mask.bool(), -torch.inf)[:, None, None]
        found: Tensor = inner.out(inner.merge(weights @ v))
        return found


@pytest.mark.parametrize("kind", [FillsWeights, AddsToWeights])
def test_a_mask_that_is_written_into_the_weights(kind: type[nn.Module]) -> None:
    finding = next(iter(found("mask_infinite", seeded(kind))))
    assert (finding.name, finding.severity) == ("mask-after-softmax", "bug")
    assert_at(finding, kind, "masked_fill(~allowed" if kind is FillsWeights else "weights + torch.zeros")


def test_a_healthy_one() -> None:
    with pytest.raises(NotApplicable):
        found("mask_infinite", seeded(Attention))
