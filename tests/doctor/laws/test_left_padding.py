"""Padding before the tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headwise.doctor.patient import NotChecked
from tests.doctor.laws.specimens import Attention, Causal, found, one, seeded

LAW = "left_padding"


class CountsPadding(Attention):
    """padding_mask: [B, K], True = a real token"""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        at = self.positions(x, padding_mask)
        x = x + (at[..., None] * torch.tensor([0.5, 0.1, 0.02, 0.004]).repeat(4)).sin()
        return self.attend(x, x, self.both(None, padding_mask))

    def positions(self, x: Tensor, padding: Tensor | None) -> Tensor:
        return torch.arange(x.shape[1]).expand(x.shape[:2])


class CountsTokens(CountsPadding):
    def positions(self, x: Tensor, padding: Tensor | None) -> Tensor:
        return super().positions(x, padding) if padding is None else padding.long().cumsum(-1) - 1


class Leaks(CountsPadding):
    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return scores if allowed is None else scores - 1.0 * ~allowed


def test_positions_that_count_padding() -> None:
    finding = one(LAW, seeded(CountsPadding))
    assert (finding.name, finding.severity) == ("left-padding", "risk")
    assert finding.numbers["left"] > 0.01
    assert finding.numbers["right"] < 1e-5


def test_healthy_ones() -> None:
    assert found(LAW, seeded(CountsTokens)) == []
    assert found(LAW, seeded(Attention)) == []


def test_where_it_cannot_be_told() -> None:
    with pytest.raises(NotChecked, match="right"):
        found(LAW, seeded(Leaks))
    with pytest.raises(NotChecked, match="no padding"):
        found(LAW, seeded(Causal))


class Generates(CountsPadding):
    """padding_mask: [B, K], True = a real token"""

    def generate(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        return x


def test_it_is_a_bug_where_the_module_is_meant_for_it() -> None:
    finding = one(LAW, seeded(Generates))
    assert finding.severity == "bug"
    assert "def generate" in finding.evidence


class WithActions(CountsPadding):
    """Each step has an action and a number, which the caller passes."""

    def forward(self, x: Tensor, actions: Tensor, timesteps: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        x = x + actions + (0.1 * timesteps)[..., None].sin()
        return self.attend(x, x, self.both(None, padding_mask))


class CountsThemItself(WithActions):
    def forward(self, x: Tensor, actions: Tensor, timesteps: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return super().forward(x, actions, torch.arange(x.shape[1]).expand(x.shape[:2]), padding_mask)


def test_what_the_caller_passes_for_each_token_moves_with_it() -> None:
    assert found(LAW, seeded(WithActions)) == []
    assert one(LAW, seeded(CountsThemItself)).severity == "risk"
