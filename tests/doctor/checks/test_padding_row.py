"""Positions that are counted from padding_idx on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import headwise
from headwise.doctor.patient import NotApplicable
from tests.doctor.checks.specimens import Attention, found, one, seeded

PAD = 1


class Encoder(nn.Module):
    """input_ids [B, N] -> [B, N, 16]: padding has id 1 and position 1; real tokens are counted from 2 on."""

    first = PAD + 1

    def __init__(self) -> None:
        super().__init__()
        self.pad_id = PAD
        self.words, self.places = (nn.Embedding(n, 16, padding_idx=PAD) for n in (50, 40))
        self.attention = Attention()

    def forward(self, input_ids: Tensor) -> Tensor:
        real = input_ids != self.pad_id
        places = torch.where(real, real.cumsum(1) - 1 + self.first, PAD)
        x = self.words(input_ids) + self.places(places)
        return x + self.attention(x, padding_mask=real)


class FromPaddingOn(Encoder):
    """input_ids [B, N] -> [B, N, 16]: padding has id 1 and position 1."""

    first = PAD


class Types(Encoder):
    """Every token is of type 0, whose row is one of padding too: no positions."""

    def forward(self, input_ids: Tensor) -> Tensor:
        real = input_ids != self.pad_id
        x = self.words(input_ids) + self.places(torch.full_like(input_ids, PAD))
        return x + self.attention(x, padding_mask=real)


class NoRow(Encoder):
    """Its tables have no row of padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words.padding_idx = self.places.padding_idx = None


def test_a_real_token_at_the_position_of_padding() -> None:
    finding = one("padding_row", seeded(FromPaddingOn))
    assert (finding.name, finding.severity, finding.numbers["row"]) == ("padding-row", "bug", PAD)
    assert "token 0" in finding.evidence
    assert [x.name for x in headwise.diagnose(seeded(FromPaddingOn)).bugs] == ["padding-row"]


@pytest.mark.parametrize("module", [Encoder, Types])
def test_positions_after_it_and_what_is_no_position(module: type[nn.Module]) -> None:
    assert found("padding_row", seeded(module)) == []
    assert headwise.diagnose(seeded(Encoder)).bugs == ()


def test_tables_without_such_a_row() -> None:
    with pytest.raises(NotApplicable):
        found("padding_row", seeded(NoRow))


class Positions(nn.Embedding):
    """Makes positions of ids, as fairseq does."""

    first = PAD + 1

    def forward(self, ids: Tensor) -> Tensor:
        real = ids != PAD
        return super().forward(torch.where(real, real.cumsum(1) - 1 + self.first, PAD))


class PositionsFromPadding(Positions):
    first = PAD


class OfATable(Encoder):
    """input_ids [B, N] -> [B, N, 16]: padding has id 1."""

    def __init__(self, kind: type[Positions]) -> None:
        super().__init__()
        self.places = kind(40, 16, padding_idx=PAD)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids) + self.places(input_ids)
        return x + self.attention(x, padding_mask=input_ids != self.pad_id)


def test_a_table_that_makes_positions_of_ids() -> None:
    assert one("padding_row", seeded(OfATable, PositionsFromPadding)).name == "padding-row"
    assert found("padding_row", seeded(OfATable, Positions)) == []
