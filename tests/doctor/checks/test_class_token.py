"""A class token beside registers, and alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable, NotChecked
from tests.doctor.checks.specimens import found, one, seeded
from tests.doctor.checks.styles import Plain


class Registers(nn.Module):
    """x: [B, N, M] -> logits [B, 10]; the class token stands behind two registers."""

    at = 2

    def __init__(self) -> None:
        super().__init__()
        self.cls_token, self.registers = nn.Parameter(torch.randn(1, 1, 16)), nn.Parameter(torch.randn(1, 2, 16))
        self.attention, self.head = Plain(), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        first = torch.cat([self.registers, self.cls_token], 1).expand(len(x), -1, -1)
        x = torch.cat([first, x], dim=1)
        return self.read(x + self.attention(x))

    def read(self, x: Tensor) -> Tensor:
        return self.head(x[:, self.at])


class ReadsARegister(Registers):
    at = 0


class ReadsTheMean(Registers):
    def read(self, x: Tensor) -> Tensor:
        return self.head(x[:, 1:].mean(1))


class ReadsTheTokens(Registers):
    def read(self, x: Tensor) -> Tensor:
        return self.head(x[:, 3:])


def test_a_register_in_the_place_of_the_class_token() -> None:
    finding = one("class_token", seeded(ReadsARegister))
    assert (finding.name, finding.severity) == ("class-token-unread", "bug")
    assert "depends on registers and not on cls_token" in finding.evidence


@pytest.mark.parametrize("module", [Registers, ReadsTheMean])
def test_a_healthy_one(module: type[nn.Module]) -> None:
    assert found("class_token", seeded(module)) == []


def test_where_it_cannot_be_asked() -> None:
    with pytest.raises(NotChecked, match="that of all tokens"):
        found("class_token", seeded(ReadsTheTokens))
    with pytest.raises(NotApplicable, match="no class token"):
        found("class_token", seeded(Plain))


class MeanOfTheRest(Registers):
    """The registers are discarded at the output."""

    first = 3

    def read(self, x: Tensor) -> Tensor:
        return self.head(x[:, 2] + x[:, self.first :].mean(1))


class MeanOfRegisters(MeanOfTheRest):
    """The registers are discarded at the output."""

    first = 1


def test_registers_that_are_said_to_be_discarded() -> None:
    assert "registers are discarded" in one("class_token", seeded(MeanOfRegisters)).evidence
    assert found("class_token", seeded(MeanOfTheRest)) == []


class Alone(Registers):
    """x: [B, N, M] -> logits [B, 10]; the class token stands before the tokens."""

    at = 0

    def __init__(self) -> None:
        super().__init__()
        del self.registers

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat(self.ordered(self.cls_token.expand(len(x), -1, -1), x), dim=1)
        return self.read(x + self.attention(x))

    def ordered(self, first: Tensor, x: Tensor) -> list[Tensor]:
        return [first, x]


class PutLast(Alone):
    """x: [B, N, M] -> logits [B, 10]."""

    def ordered(self, first: Tensor, x: Tensor) -> list[Tensor]:
        return [x, first]


class MeanOfAll(Alone):
    """x: [B, N, M] -> logits [B, 10]."""

    def read(self, x: Tensor) -> Tensor:
        return self.head(x.mean(1))


def test_a_token_of_the_input_in_its_place() -> None:
    finding = one("class_token", seeded(PutLast))
    assert (finding.name, finding.severity) == ("class-token-unread", "bug")
    assert "depends on token 0 of the input alone, and not on cls_token" in finding.evidence
    assert found("class_token", seeded(Alone)) == found("class_token", seeded(MeanOfAll)) == []
