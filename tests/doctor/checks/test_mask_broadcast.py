"""Padding masks that meet another axis than the keys."""

from __future__ import annotations

import pytest
from torch import Tensor

from headwise.doctor.patient import NotChecked
from tests.doctor.checks.specimens import Attention, Causal, found, one, seeded


class Padded(Attention):
    """padding_mask: [B, K], True = a real token"""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return self.attend(x, x, None if padding_mask is None else self.lay(padding_mask.bool()))

    def lay(self, padding: Tensor) -> Tensor:
        return padding[:, None, None]


class HidesQueries(Padded):
    def lay(self, padding: Tensor) -> Tensor:
        return padding[:, None, :, None]


class TakenForCells(Padded):
    """[B, K] against [B, H, Q, K] meets the last two."""

    def lay(self, padding: Tensor) -> Tensor:
        return padding


class TakenForHeads(Padded):
    def lay(self, padding: Tensor) -> Tensor:
        return padding[:, None]


def test_queries_in_place_of_keys() -> None:
    finding = one("mask_broadcast", seeded(HidesQueries))
    assert (finding.name, finding.severity) == ("mask-broadcast", "bug")
    assert finding.numbers == {"rows": 3, "of": 15}
    assert "hides queries" in finding.evidence


def test_a_batch_as_long_as_the_sequence() -> None:
    finding = one("mask_broadcast", seeded(TakenForCells))
    assert finding.severity == "bug"
    assert finding.numbers == {"examples": 3, "of": 3}
    assert "[Q, K], since both have 4 rows" in finding.evidence


def test_a_batch_as_large_as_the_heads() -> None:
    finding = one("mask_broadcast", seeded(TakenForHeads, heads=2))
    assert finding.numbers == {"examples": 1, "of": 1}
    assert "[H, K], since both have 2 rows" in finding.evidence


def test_healthy_ones() -> None:
    assert found("mask_broadcast", seeded(Padded)) == []
    assert found("mask_broadcast", seeded(Attention)) == []
    with pytest.raises(NotChecked, match="no mask"):
        found("mask_broadcast", seeded(Causal))
