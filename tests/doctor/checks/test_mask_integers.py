"""Masks that are said to hold 0 and 1, given as these integers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headwise.doctor.patient import NotApplicable
from tests.doctor.checks.specimens import Attention, found, one, seeded

NAME = "mask_integers"


class Inverted(Attention):
    """
    Args:
        mask: [B, K], 1 for real tokens and 0 for padding
    """

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.attend(x, x, None if mask is None else ~self.forbidden(mask)[:, None, None])

    def forbidden(self, mask: Tensor) -> Tensor:
        return (~mask).to(torch.bool)  # of 0 and 1: -1 and -2


class Compared(Inverted):
    """
    Args:
        mask: [B, K], 1 for real tokens and 0 for padding
    """

    def forbidden(self, mask: Tensor) -> Tensor:
        return mask == 0


class Boolean(Attention):
    """
    Args:
        mask: [B, K], bool, True (1) for real tokens
    """

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.attend(x, x, None if mask is None else mask[:, None, None])


class Strict(Inverted):
    """
    Args:
        mask: [B, K], 1 for real tokens and 0 for padding
    """

    def forbidden(self, mask: Tensor) -> Tensor:
        if mask.dtype != torch.bool:
            raise TypeError("mask must be boolean")
        return ~mask


def test_the_integers_0_and_1_are_inverted() -> None:
    finding = one(NAME, seeded(Inverted))
    assert (finding.name, finding.severity) == ("mask-ignored", "bug")
    assert "1 for real tokens and 0 for padding" in finding.evidence
    assert finding.numbers["change"] > 0.01


@pytest.mark.parametrize("kind", [Compared, Strict])
def test_integers_that_act_or_raise(kind: type[Attention]) -> None:
    assert found(NAME, seeded(kind)) == []


@pytest.mark.parametrize("kind", [Boolean, Attention])
def test_a_mask_that_is_boolean_by_its_documentation(kind: type[Attention]) -> None:
    with pytest.raises(NotApplicable):
        found(NAME, seeded(kind))
