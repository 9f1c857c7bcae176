"""Keys behind some position that nobody reads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable
from tests.doctor.checks.specimens import Attention, Causal, Cross, found, one, seeded
from tests.doctor.checks.styles import Plain


class CutToHeads(Plain):
    """Keys and values of as many tokens as there are heads."""

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        return super().attend(x, memory[:, : self.heads], allowed)


class CutInABlock(CutToHeads):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class Window(Plain):
    """Each token sees itself and the one before it."""

    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        ones = torch.ones(scores.shape[-2:], dtype=torch.bool)
        return super().fill(scores, ones.tril() & ones.triu(-1))


class Alone(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.v(x))


@pytest.mark.parametrize("kind", [CutToHeads, CutInABlock])
def test_keys_that_are_cut(kind: type[nn.Module]) -> None:
    finding = one("tokens_unread", seeded(kind))
    assert (finding.name, finding.severity) == ("tokens-unread", "bug")
    assert finding.numbers == {"last": 3.0, "tokens": 20.0}


@pytest.mark.parametrize("kind", [Attention, Causal, Window])
def test_a_healthy_one(kind: type[nn.Module]) -> None:
    assert found("tokens_unread", seeded(kind)) == []


@pytest.mark.parametrize("kind", [Cross, Alone])
def test_where_tokens_do_not_see_one_another(kind: type[nn.Module]) -> None:
    with pytest.raises(NotApplicable):
        found("tokens_unread", seeded(kind))


class Predicts(Plain):
    """A window whose place is predicted by centre_of [B, M]."""

    fixed = False

    def forward(self, x: Tensor, centre_of: Tensor) -> Tensor:
        length = x.shape[1]
        centre = (length - 1) * (centre_of.mean(-1) / 4).sigmoid()[:, None, None]
        if self.fixed:
            centre = torch.full_like(centre, 4.0)
        near = (torch.arange(length) - centre).abs() <= 3
        return self.attend(x, x, near.expand(-1, length, -1)[:, None])


class FixedWindow(Predicts):
    fixed = True


def test_a_window_that_is_predicted() -> None:
    assert one("tokens_unread", seeded(FixedWindow)).numbers["last"] == 7
    with pytest.raises(NotApplicable, match="depends on numbers that it is given"):
        found("tokens_unread", seeded(Predicts))
