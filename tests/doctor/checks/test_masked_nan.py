"""NaN behind a mask."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headwise.doctor.patient import NotChecked
from headwise.nn import MultiHeadAttention
from tests.doctor.checks.specimens import Attention, Causal, found, one, seeded


class Cleans(Attention):
    """padding_mask: [B, K], True = a real token"""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        clean = x if padding_mask is None else torch.where(padding_mask[..., None], x, 0)
        return self.attend(x, clean, self.both(None, padding_mask))


def test_zero_times_nan() -> None:
    finding = one("masked_nan", seeded(Attention))
    assert (finding.name, finding.severity) == ("masked-nan-leaks", "note")
    assert finding.numbers == {"rows": 12, "of": 12}  # three examples of four rows other than its own


def test_a_healthy_one() -> None:
    assert found("masked_nan", seeded(Cleans)) == []
    assert found("masked_nan", MultiHeadAttention(16, 4)) == []
    with pytest.raises(NotChecked, match="no mask"):
        found("masked_nan", seeded(Causal))
