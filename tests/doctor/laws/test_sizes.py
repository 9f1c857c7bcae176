"""Other sizes, and what comes back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise
from tests.doctor.laws.specimens import Attention, Cross, altered, found, one, seeded

LAW = "sizes"


class Positions(Attention):
    """Learned, for so many tokens. `exactly`: for no fewer."""

    exactly = False

    def __init__(self, most: int = 16) -> None:
        super().__init__()
        self.most, self.positions = most, nn.Parameter(torch.randn(most, 16))

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > self.most or (self.exactly and x.shape[1] < self.most):
            raise ValueError("another length")
        return super().forward(x + self.positions[: x.shape[1]])


def _squeezed(self: Any, x: Tensor) -> Tensor:
    q, k, v = (self.split(w(x)).squeeze() for w in (self.q, self.k, self.v))
    return self.out(self.merge(self.score(q, k).softmax(-1) @ v))


def _as_long(self: Any, x: Tensor, memory: Tensor) -> Tensor:
    return self.attend(x, memory.view(len(x), x.shape[1], 16), None)


def test_a_squeeze_that_takes_too_much() -> None:
    findings = found(LAW, altered(forward=_squeezed))
    assert [(x.name, x.severity) for x in findings] == [("sizes-fixed", "bug")] * 2
    assert "raises with a batch of 1: " in findings[0].evidence
    assert "raises with one token: " in findings[1].evidence


@pytest.mark.parametrize(
    ("module", "severity", "said"),
    [
        (seeded(Positions), "note", "up to 12 tokens"),
        (altered(Positions, 6, exactly=True), "note", "it runs with 6 tokens and with no other length"),
        (altered(Cross, forward=_as_long), "bug", "2 more keys than queries"),
    ],
)
def test_sizes_that_are_fixed(module: nn.Module, severity: str, said: str) -> None:
    finding = one(LAW, module)
    assert (finding.name, finding.severity) == ("sizes-fixed", severity)
    assert said in finding.evidence


# What comes back.


def _one_row_less(self: Any, x: Tensor, memory: Tensor) -> Tensor:
    out = self.attend(x, memory, None)
    return out if len(x) == 3 else out[:, :-1]


def _partly_nan(self: Any, x: Tensor) -> Tensor:
    return torch.where(torch.arange(16) < 1, torch.nan, self.attend(x, x, None))


def _scores(self: Any, x: Tensor, memory: Tensor) -> Tensor:
    return self.score(self.split(self.q(x)), self.split(self.k(memory))).mean(1)


@pytest.mark.parametrize(
    ("kind", "forward", "severity", "said"),
    [
        (Cross, _one_row_less, "bug", "6 for 7 queries"),
        (Attention, _partly_nan, "bug", "15 of its 240 numbers are NaN"),
        (Cross, lambda self, x, memory: self.attend(x, memory, None)[..., : x.shape[1]], "bug", "the width of its"),
        (Attention, lambda self, x: self.attend(x, x, None).mean(1, keepdim=True), "note", "1 for 5 queries; 1 for 7"),
        (Cross, _scores, "note", "returns 1 for each key"),
        (Attention, lambda self, x: _scores(self, x, x), "risk", "returns 1 for each key"),
    ],
)
def test_the_shape_of_the_output(kind: type[nn.Module], forward: Any, severity: str, said: str) -> None:
    finding = next(x for x in found(LAW, altered(kind, forward=forward)) if x.name == "output-shape")
    assert finding.severity == severity
    assert said in finding.evidence


class AddsNaN(Attention):
    """Sees no future."""

    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        keep = torch.ones(scores.shape[-2:]).tril()
        return scores + (1 - keep) * -torch.inf


def test_an_output_of_nan_alone_is_a_bug_of_the_line_where_it_begins() -> None:
    diagnosis = headwise.diagnose(seeded(AddsNaN))
    (bug,) = diagnosis.bugs
    assert bug.name == "output-shape"
    assert not diagnosis.not_examined
    assert "(1 - keep) * -torch.inf" in bug.where.code


def test_nan_of_a_call_with_invented_arguments_is_no_bug() -> None:
    """What `unheard_of` is cannot be guessed: NaN may be the fault of the call."""
    diagnosis = headwise.diagnose(altered(forward=lambda self, x, unheard_of: self.attend(x, x, None) * torch.nan))
    assert not diagnosis.bugs
    assert diagnosis.not_examined


# Heads.


class Narrow(Attention):
    """Its heads together have this width, which may be stated as that of one."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__(width, heads)
        self.q, self.k, self.v = (nn.Linear(width, inner) for _ in range(3))
        self.out = nn.Linear(inner, width)


class Stated(Narrow):
    def __init__(self, width: int, heads: int, head_dim: int) -> None:
        super().__init__(width, heads, heads * head_dim)
        self.head_dim = head_dim


def test_a_width_that_is_made_to_fit() -> None:
    finding = one(LAW, seeded(Narrow, 18, 4, 16))
    assert (finding.name, finding.severity) == ("heads-not-dividing", "risk")
    assert "has 16 features instead of 18" in finding.evidence


@pytest.mark.parametrize("module", [seeded(Attention), seeded(Cross), seeded(Stated, 18, 4, 5)])
def test_a_healthy_one(module: nn.Module) -> None:
    assert found(LAW, module) == []
