"""Weights of zeros that wait for one another."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable
from tests.doctor.checks.specimens import Attention, found, one, seeded


class Gated(Attention):
    """The attended values are added through a gate."""

    first, last = False, True  # which of its layers begin with 0

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
        for layer, begins in ((self.inner, self.first), (self.outer, self.last)):
            if begins:
                nn.init.zeros_(layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        out = self.attend(x, x, None)
        return x + self.outer(self.inner(out).relu()).tanh() * out


class BothZero(Gated):
    first = True


class AfterOneAnother(Gated):
    """A scale of 0 in front of a layer of zeros, and a branch that wakes them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(1, 16))

    def forward(self, x: Tensor) -> Tensor:
        out = self.attend(x, x, None)
        return x + self.scale * out + self.scale * self.outer(self.inner(out))


class WithAFlag(Gated):
    """Two layers of zeros that are used with a flag only."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Linear(16, 16, bias=False)
        nn.init.zeros_(self.extra.weight)

    def forward(self, x: Tensor, use_extra: bool = False) -> Tensor:
        out = self.attend(x, x, None)
        return out + self.outer(self.extra(x) + x) if use_extra else out


def test_two_in_a_row() -> None:
    finding = one("zero_start", seeded(BothZero))
    assert (finding.name, finding.severity) == ("zero-start", "bug")
    assert "inner.weight and outer.weight begin with 0 and stay 0" in finding.evidence


@pytest.mark.parametrize("module", [AfterOneAnother, WithAFlag])
def test_those_that_wake(module: type[nn.Module]) -> None:
    assert found("zero_start", seeded(module)) == []


def test_one_alone() -> None:
    with pytest.raises(NotApplicable):
        found("zero_start", seeded(Gated))
