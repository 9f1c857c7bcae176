"""The future of causal modules."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headwise.doctor.patient import NotChecked
from tests.doctor.checks.specimens import Attention, Causal, Cross, found, one, seeded


class Masked(Attention):
    diagonal = 0

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        return self.attend(x, x, torch.ones(n, n, dtype=torch.bool, device=x.device).tril(self.diagonal))


class CausalOneAhead(Masked):
    diagonal = 1


class OneAhead(Masked):
    """Says nothing of it."""

    diagonal = 1


class CausalTurnedRound(Attention):
    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        return self.attend(x, x, torch.ones(n, n, dtype=torch.bool, device=x.device).triu())


class CausalInOneHead(Causal):
    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return torch.cat([super().fill(scores, allowed)[:, :1], scores[:, 1:]], dim=1)


class Window(Attention):
    """Neighbours on both sides: not causal, and not meant to be."""

    def forward(self, x: Tensor) -> Tensor:
        at = torch.arange(x.shape[1])
        return self.attend(x, x, (at[:, None] - at[None]).abs() <= 1)


def test_one_token_ahead() -> None:
    for kind in (CausalOneAhead, OneAhead):
        finding = one("causal_leak", seeded(kind))
        assert (finding.name, finding.severity) == ("causal-leak", "bug")
        assert (finding.numbers["pairs"], finding.numbers["of"]) == (7, 28)  # 8 tokens
        assert finding.numbers["change"] > 0.01
        assert "exactly the next token" in finding.evidence


def test_some_heads_that_see_everything() -> None:
    finding = one("causal_leak", seeded(CausalInOneHead))
    assert (finding.severity, finding.numbers["pairs"]) == ("bug", 28)
    assert "up to 7 tokens ahead" in finding.evidence


class Blocks(Attention):
    """Causal over blocks of two, whose tokens see one another."""

    def forward(self, x: Tensor) -> Tensor:
        block = torch.arange(x.shape[1]) // 2
        return self.attend(x, x, block[:, None] >= block)


class ByFlag(Attention):
    diagonal = 0

    def forward(self, x: Tensor, is_causal: bool = False) -> Tensor:
        n = x.shape[1]
        return self.attend(x, x, torch.ones(n, n, dtype=torch.bool).tril(self.diagonal) if is_causal else None)


class ByFlagOneAhead(ByFlag):
    diagonal = 1


class IgnoresItsFlag(Attention):
    def forward(self, x: Tensor, is_causal: bool = False) -> Tensor:
        return self.attend(x, x, None)


def test_blocks_may_be_meant() -> None:
    finding = one("causal_leak", seeded(Blocks))
    assert (finding.severity, finding.numbers["pairs"]) == ("risk", 4)


def test_what_a_flag_promises() -> None:
    finding = one("causal_leak", seeded(ByFlagOneAhead))
    assert (finding.severity, finding.numbers["pairs"]) == ("bug", 7)
    assert "is_causal=True" in finding.evidence
    assert one("causal_leak", seeded(IgnoresItsFlag)).severity == "risk"  # some take it as a hint about the mask
    assert found("causal_leak", seeded(ByFlag)) == []


def test_a_mask_turned_round() -> None:
    finding = one("causal_leak", seeded(CausalTurnedRound))
    assert (finding.name, finding.severity) == ("mask-polarity", "bug")
    assert "28 of 28 future pairs, 0 of 28 past pairs" in finding.evidence


def test_healthy_ones() -> None:
    for kind in (Causal, Attention, Window):
        assert found("causal_leak", seeded(kind)) == []
    with pytest.raises(NotChecked, match="memory"):
        found("causal_leak", seeded(Cross))
