"""Soft caps before and after a mask."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headwise.doctor.patient import NotApplicable
from tests.doctor.checks.specimens import Attention, Causal, found, one, seeded


class CapsFirst(Causal):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return 5 * (super().score(q, k) / 5).tanh()


class CapsLast(Causal):
    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return 5 * torch.tanh(super().fill(scores, allowed) / 5)


class CapsAMask(Attention):
    """mask: [B, K], True = may attend."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (self.split(w(x)) for w in (self.q, self.k, self.v))
        scores = self.score(q, k)
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None], -torch.inf)
        return self.out(self.merge((5 * (scores / 5).tanh()).softmax(-1) @ v))


@pytest.mark.parametrize("module", [CapsLast, CapsAMask])
def test_a_cap_after_the_mask(module: type[Attention]) -> None:
    finding = one("capped_mask", seeded(module))
    assert (finding.name, finding.severity) == ("masked-key-counts", "bug")


def test_a_healthy_one() -> None:
    assert found("capped_mask", seeded(CapsFirst)) == []
    with pytest.raises(NotApplicable, match="no tanh"):
        found("capped_mask", seeded(Causal))
