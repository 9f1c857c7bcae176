"""A causal mask in a module that says it has none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable
from tests.doctor.checks.specimens import Attention, Causal, found, one, seeded


class SaysNo(Causal):
    is_causal = False


class Bidirectional(Attention):
    """Bidirectional attention of an encoder."""

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        return self.attend(x, x, torch.ones(n, n, dtype=torch.bool).tril())


class Honest(Attention):
    """Bidirectional attention of an encoder."""

    is_causal = False


@pytest.mark.parametrize("module", [SaysNo, Bidirectional])
def test_a_causal_mask_against_its_word(module: type[nn.Module]) -> None:
    finding = one("causal_unasked", seeded(module))
    assert (finding.name, finding.severity) == ("causal-unasked", "bug")


def test_healthy_ones() -> None:
    assert found("causal_unasked", seeded(Honest)) == []
    with pytest.raises(NotApplicable):
        found("causal_unasked", seeded(Causal))
