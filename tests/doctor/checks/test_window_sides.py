"""Windows of two sides."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headwise.doctor.patient import NotApplicable
from tests.doctor.checks.specimens import Attention, found, one, seeded


class Silent(Attention):
    def __init__(self, left: int = 3, right: int = 2) -> None:
        super().__init__()
        self.window, self.reach = (3, 2), (left, right)

    def forward(self, x: Tensor) -> Tensor:
        apart = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        return self.attend(x, x, (apart <= self.reach[0]) & (-apart <= self.reach[1]))


class Said(Silent):
    """A position sees itself, `w_left` past frames and `w_right` future frames."""


class ItselfIncluded(Silent):
    """A position sees fewer than `w_left` frames back and `w_right` future frames."""


def test_one_frame_is_missing() -> None:
    finding = one("window_sides", seeded(Said, 3, 1))
    assert (finding.name, finding.severity) == ("window-off-by-one", "bug")
    assert "attends to 2 later ones: it attends to 1" in finding.evidence
    assert "attends to 3 earlier ones: it attends to 2" in one("window_sides", seeded(Said, 2, 2)).evidence


def test_as_it_is_said() -> None:
    assert found("window_sides", seeded(Said)) == []
    assert found("window_sides", seeded(ItselfIncluded, 2, 2)) == []


def test_nothing_is_said() -> None:
    with pytest.raises(NotApplicable):
        found("window_sides", seeded(Silent, 2, 1))
