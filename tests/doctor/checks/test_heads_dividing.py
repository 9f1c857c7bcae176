"""Numbers of heads that do not divide the width."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.checks import heads_dividing
from headwise.doctor.patient import NotChecked, Patient
from tests.doctor.checks.specimens import Attention, found, one, seeded


class Truncates(Attention):
    """Cuts off what is left over, and fills it up with zeros."""

    def split(self, x: Tensor) -> Tensor:
        d = self.width // self.heads
        return x[..., : d * self.heads].reshape(*x.shape[:2], self.heads, d).transpose(1, 2)

    def merge(self, x: Tensor) -> Tensor:
        merged = super().merge(x)
        return nn.functional.pad(merged, (0, self.width - merged.shape[-1]))


class Narrow(Attention):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        inner = width // heads * heads
        self.q, self.k, self.v = (nn.Linear(width, inner) for _ in range(3))
        self.out = nn.Linear(inner, width)


class Refuses(Attention):
    def __init__(self, width: int = 16, heads: int = 4) -> None:
        if width % heads:
            raise ValueError("heads must divide width")
        super().__init__(width, heads)


class Stated(Attention):
    """The width of a head is an argument of its own."""

    def __init__(self, width: int, heads: int, head_dim: int) -> None:
        super().__init__(width, heads)
        self.head_dim = head_dim
        self.q, self.k, self.v = (nn.Linear(width, heads * head_dim) for _ in range(3))
        self.out = nn.Linear(heads * head_dim, width)


def test_features_that_belong_to_no_head() -> None:
    finding = one("heads_dividing", seeded(Truncates, 16, 3))
    assert (finding.name, finding.severity) == ("heads-not-dividing", "bug")
    assert finding.numbers == {"width": 16, "heads": 3, "left": 1}


def test_another_number_of_heads_that_is_accepted() -> None:
    finding = one("heads_dividing", seeded(Truncates, 16, 4))
    assert (finding.severity, finding.numbers) == ("risk", {"width": 16, "heads": 5, "left": 1})
    assert finding.evidence.startswith("heads=5 is accepted")


def test_a_width_that_is_made_to_fit() -> None:
    finding = one("heads_dividing", seeded(Narrow, 18, 4))
    assert (finding.severity, finding.numbers["left"]) == ("risk", 2)
    assert "has 16 features instead of 18" in finding.evidence


def test_healthy_ones() -> None:
    assert found("heads_dividing", seeded(Refuses)) == []
    assert found("heads_dividing", seeded(Attention)) == []  # the first call refuses
    assert found("heads_dividing", seeded(Stated, 18, 4, 5)) == []
    assert found("heads_dividing", seeded(Stated, 16, 4, 4)) == []


def test_how_it_was_made_is_told() -> None:
    torch.manual_seed(0)
    made = functools.partial(Truncates, 16, heads=4)
    findings = list(heads_dividing.check(Patient(made(), make=made)))
    assert [x.severity for x in findings] == ["risk"]


def test_where_heads_are_unknown() -> None:
    with pytest.raises(NotChecked, match="heads"):
        found("heads_dividing", seeded(Attention, heads=1))
