"""What stands in padding, in models that know from their ids which tokens are padding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import headwise
from headwise.doctor.patient import NotApplicable
from tests.doctor.checks.specimens import Attention, Causal, found, one, seeded


class Text(nn.Module):
    """ids [B, N] -> [B, 8]: one vector for each text, the mean over real tokens; id 0 is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.attention, self.head = nn.Embedding(50, 16, padding_idx=0), Attention(), nn.Linear(16, 8)

    def forward(self, ids: Tensor) -> Tensor:
        real = ids != 0
        x = self.words(ids)
        return self.head(self.pool(x + self.attention(x, padding_mask=self.mask(real)), real))

    def mask(self, real: Tensor) -> Tensor:
        return real

    def pool(self, x: Tensor, real: Tensor) -> Tensor:
        weights = real[..., None] / real.sum(1)[:, None, None].clamp(min=1)
        return (x * weights).sum(1)


class MeanOfAll(Text):
    """ids [B, N] -> [B, 8]: one vector for each text; id 0 is padding."""

    def pool(self, x: Tensor, real: Tensor) -> Tensor:
        return x.mean(1)


class MeanOfAllRows(MeanOfAll):
    """ids [B, N] -> [B, 8]: one vector for each text; id 0 is padding, whose row is trained as any other."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)


class ShiftedMask(Text):
    """ids [B, N] -> [B, 8]: one vector for each text; id 0 is padding."""

    def mask(self, real: Tensor) -> Tensor:
        return nn.functional.pad(real, (1, 0), value=True)[:, :-1]


class LastOne(Text):
    """ids [B, N] -> [B, 8]: the last row of a text with padding on the left; id 0 is padding."""

    def pool(self, x: Tensor, real: Tensor) -> Tensor:
        return x[:, -1]


class Tower(nn.Module):
    """ids [B, N] -> [B, 8]: causal; the row of the last token, which padding (0) may follow."""

    past = 1

    def __init__(self) -> None:
        super().__init__()
        self.words, self.attention, self.head = nn.Embedding(50, 16), Causal(), nn.Linear(16, 8)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        last = ((ids != 0).sum(1) - self.past).clamp(min=0, max=ids.shape[1] - 1)
        return self.head((x + self.attention(x))[torch.arange(len(x)), last])


class OneTooLate(Tower):
    """ids [B, N] -> [B, 8]: causal; the row of the last token, which padding (0) may follow."""

    past = 0


class Unaware(Text):
    """A row of ids has no padding."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        return self.head((x + self.attention(x)).mean(1))


@pytest.mark.parametrize("module", [MeanOfAllRows, ShiftedMask, OneTooLate])
def test_padding_that_reaches_the_output(module: type[nn.Module]) -> None:
    finding = one("padding_read", seeded(module))
    assert (finding.name, finding.severity) == ("padding-read", "bug")
    assert finding.numbers["after"] > 1e-4 < finding.numbers["before"]
    assert "padding-read" in {x.name for x in headwise.diagnose(seeded(module)).bugs}


def test_all_padding_of_a_row_of_zeros_is_a_risk() -> None:
    assert [(x.name, x.severity) for x in found("padding_read", seeded(MeanOfAll))] == [("padding-read", "risk")]


@pytest.mark.parametrize("module", [Text, LastOne])
def test_padding_that_is_hidden_or_meant_for_one_side(module: type[nn.Module]) -> None:
    assert found("padding_read", seeded(module)) == []
    assert headwise.diagnose(seeded(module)).bugs == ()


def test_a_causal_tower_reads_padding_before_its_tokens_alone() -> None:
    """It has no mask, and is meant for padding after them."""
    assert found("padding_read", seeded(Tower)) == []


class GivenAMask(Text):
    """ids [B, N] -> [B, 8]; only its positions depend on which ids are padding (0), and its caller passes the mask."""

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.words(ids) + 0.1 * (ids != 0).cumsum(1)[..., None]
        return self.head((x + self.attention(x, padding_mask=attention_mask)).mean(1))


def test_one_that_knows_no_padding_or_is_told() -> None:
    for module in (Unaware, GivenAMask):
        with pytest.raises(NotApplicable):
            found("padding_read", seeded(module))
