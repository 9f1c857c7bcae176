"""Padding before the tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headwise.doctor.patient import NotChecked
from tests.doctor.laws.specimens import Attention, Causal, found, one, seeded

LAW = "left_padding"


class Placed(Attention):
    """padding_mask: [B, K], True = a real token. Its positions count padding."""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        at = self.places(torch.ones(x.shape[:2]) if padding_mask is None else padding_mask.long())
        x = x + (at[..., None] * torch.tensor([0.5, 0.1, 0.02, 0.004]).repeat(4)).sin()
        return self.attend(x, x, self.both(None, padding_mask))

    def places(self, real: Tensor) -> Tensor:
        return torch.arange(real.shape[1]).expand(real.shape)


class Generates(Placed):
    def generate(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        return x


class WithActions(Placed):
    """Each step has an action and a number, which the caller passes."""

    counts = False

    def forward(self, x: Tensor, actions: Tensor, timesteps: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        steps = torch.arange(x.shape[1]).expand(x.shape[:2]) if self.counts else timesteps
        x = x + actions + (0.1 * steps)[..., None].sin()
        return self.attend(x, x, self.both(None, padding_mask))


def test_positions_that_count_padding() -> None:
    for module, severity in ((Placed, "risk"), (Generates, "bug"), (seeded(WithActions, counts=True), "risk")):
        finding = one(LAW, module)
        assert (finding.name, finding.severity) == ("left-padding", severity)
        assert finding.numbers["change"] > 0.01
        assert "; after them they change nothing." in finding.evidence


def leaking(scores: Tensor, allowed: Tensor | None) -> Tensor:
    return scores if allowed is None else scores - 1.0 * ~allowed


def test_what_is_healthy_or_not_checked() -> None:
    for module in (Attention, seeded(Placed, places=lambda real: real.cumsum(-1) - 1), WithActions):
        assert found(LAW, module) == []
    for module, words in ((seeded(Placed, fill=leaking), "right"), (Causal, "no padding")):
        with pytest.raises(NotChecked, match=words):
            found(LAW, module)
