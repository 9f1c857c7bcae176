"""Inputs in another memory order."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.doctor.checks.specimens import Attention, found, one, seeded


class Views(Attention):
    def forward(self, x: Tensor) -> Tensor:
        flat = x.view(-1, x.shape[-1])
        return super().forward(flat.view(x.shape))


class ReadsMemory(Attention):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.as_strided(x, x.shape, (x.shape[1] * x.shape[2], x.shape[2], 1)))


def test_a_view_that_is_refused() -> None:
    finding = one("noncontiguous", seeded(Views))
    assert (finding.name, finding.severity) == ("noncontiguous-input", "risk")
    assert "view size is not compatible" in finding.evidence


def test_memory_that_is_read_as_it_lies() -> None:
    finding = one("noncontiguous", seeded(ReadsMemory))
    assert finding.severity == "bug"
    assert finding.numbers["change"] > 0.1


def test_a_healthy_one() -> None:
    assert found("noncontiguous", seeded(Attention)) == []
