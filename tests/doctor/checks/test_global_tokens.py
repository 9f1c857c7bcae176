"""Tokens that see everything and are seen by everything."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable, NotChecked
from tests.doctor.checks.specimens import Attention, found, one, seeded


class Local(Attention):
    """A window of 2 on both sides, and the tokens that global_mask [B, T] marks."""

    def forward(self, x: Tensor, global_mask: Tensor | None = None) -> Tensor:
        at = torch.arange(x.shape[1])
        allowed = ((at[:, None] - at).abs() <= 2)[None]
        if global_mask is not None:
            allowed = self.opened(allowed, global_mask.bool())
        return self.attend(x, x, allowed[:, None])

    def opened(self, allowed: Tensor, marked: Tensor) -> Tensor:
        return allowed | marked[:, :, None] | marked[:, None, :]


class RowsAlone(Local):
    def opened(self, allowed: Tensor, marked: Tensor) -> Tensor:
        return allowed | marked[:, :, None]


class ColumnsAlone(Local):
    def opened(self, allowed: Tensor, marked: Tensor) -> Tensor:
        return allowed | marked[:, None, :]


class Meant(ColumnsAlone):
    """Global tokens are asymmetric: they are read and do not read."""


class Everything(Attention):
    def forward(self, x: Tensor, global_mask: Tensor | None = None) -> Tensor:
        return self.attend(x, x, None)


@pytest.mark.parametrize(
    ("module", "words"), [(RowsAlone, "which does not see it"), (ColumnsAlone, "it does not see the first one")]
)
def test_one_direction(module: type[nn.Module], words: str) -> None:
    finding = one("global_tokens", seeded(module))
    assert (finding.name, finding.severity) == ("global-one-way", "bug")
    assert words in finding.evidence
    assert "token 23 of 24" in finding.evidence


def test_both_directions() -> None:
    assert found("global_tokens", seeded(Local)) == []


def test_what_is_said_or_cannot_be_seen() -> None:
    with pytest.raises(NotApplicable, match="in one direction"):
        found("global_tokens", seeded(Meant))
    with pytest.raises(NotChecked, match="sees the whole sequence without it"):
        found("global_tokens", seeded(Everything))
    with pytest.raises(NotApplicable, match="not told"):
        found("global_tokens", seeded(Attention))
