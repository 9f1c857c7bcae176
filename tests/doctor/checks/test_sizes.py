"""Sizes at which a module fails."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.doctor.checks.specimens import Attention, Cross, found, one, seeded


class Squeezes(Attention):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(w(x)).squeeze() for w in (self.q, self.k, self.v))
        return self.out(self.merge(self.score(q, k).softmax(-1) @ v))


class Blocks(Attention):
    """Blocks of four tokens, and five."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] % 4 and x.shape[1] != 5:
            raise ValueError(f"{x.shape[1]} tokens are no blocks of 4")
        return super().forward(x)


class Positions(Attention):
    def __init__(self, most: int = 16) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(most, 16))

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > len(self.positions):
            raise ValueError("too long")
        return super().forward(x + self.positions[: x.shape[1]])


class AsLong(Cross):
    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], self.length, self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        self.length = x.shape[1]
        return self.attend(x, memory, None)


class Fixed(Attention):
    def __init__(self, seq_len: int = 6) -> None:
        super().__init__()
        self.seq_len = seq_len
        self.bias = nn.Parameter(torch.randn(seq_len, seq_len))

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, None)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k) + self.bias


def test_a_squeeze_that_takes_too_much() -> None:
    findings = found("sizes", seeded(Squeezes))
    assert [(x.name, x.severity) for x in findings] == [("sizes-fixed", "bug")] * 2
    assert findings[0].numbers == {"batch": 1}
    assert findings[1].numbers == {"length": 1}


def test_lengths_that_fail() -> None:
    finding = one("sizes", seeded(Blocks))
    assert (finding.severity, finding.numbers["length"]) == ("risk", 1)
    assert (
        "runs with 4, 5, 12, 64 tokens, and raises with 1, 2, 7, 33: ValueError: 1 tokens are no blocks"
        in finding.evidence
    )


def test_a_largest_length_is_a_note() -> None:
    finding = one("sizes", seeded(Positions))
    assert (finding.severity, finding.numbers["length"]) == ("note", 33)
    assert "up to 12 tokens" in finding.evidence
    fixed = one("sizes", seeded(Fixed))
    assert (fixed.severity, fixed.numbers["length"]) == ("note", 6)


def test_a_memory_that_must_be_as_long_as_the_queries() -> None:
    finding = one("sizes", seeded(AsLong))
    assert (finding.name, finding.severity) == ("sizes-fixed", "bug")
    assert "2 more keys than queries" in finding.evidence


@pytest.mark.parametrize("kind", [Attention, Cross])
def test_a_healthy_one(kind: type[Attention]) -> None:
    assert found("sizes", seeded(kind)) == []


class Clipped(Attention):
    """Vectors of relative distances, which are clipped on both sides."""

    low = -3

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(7, 16))

    def forward(self, x: Tensor) -> Tensor:
        at = torch.arange(x.shape[1])
        away = (at - at[:, None]).clamp(min=self.low, max=3)
        return self.attend(x, x, None) + self.table[away + 3].mean(1)


class ClippedAbove(Clipped):
    """Vectors of relative distances, which are clipped on one side."""

    low = -100


def test_an_index_that_is_not_clipped_from_below() -> None:
    finding = one("sizes", seeded(ClippedAbove))
    assert finding.severity == "bug"
    assert "not from below" in finding.evidence
    assert found("sizes", seeded(Clipped)) == []


class OfThePast(AsLong):
    """A causal mask between two inputs: position t of the query sees the positions up to t of the memory."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        causal_mask = torch.ones(self.length, self.length, dtype=torch.bool).tril()
        return super().score(q, k).masked_fill(~causal_mask, -torch.inf)


def test_a_causal_memory_has_the_positions_of_the_queries() -> None:
    assert found("sizes", seeded(OfThePast)) == []
