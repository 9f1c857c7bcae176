"""Gates without the sigmoid that is said."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable
from tests.doctor.checks.specimens import Attention, found, one, seeded


class Silent(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, None) * self.bounded(self.gate(x))

    def bounded(self, x: Tensor) -> Tensor:
        return x


class Said(Silent):
    """The output is multiplied by a sigmoid gate."""


class Bounded(Said):
    def bounded(self, x: Tensor) -> Tensor:
        return x.sigmoid()


def test_a_gate_without_its_sigmoid() -> None:
    finding = one("gate_linear", seeded(Said))
    assert (finding.name, finding.severity) == ("gate-linear", "bug")
    assert "its text says that gate is a gate with a sigmoid" in finding.evidence
    assert found("gate_linear", seeded(Bounded)) == []


def test_nothing_is_said() -> None:
    with pytest.raises(NotApplicable):
        found("gate_linear", seeded(Silent))
