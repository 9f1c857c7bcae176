"""Causal encoders that read a text off at its end token."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable
from tests.doctor.checks.specimens import Causal, found, one, seeded
from tests.doctor.checks.styles import Plain


class Tower(nn.Module):
    """ids [B, N] -> [B, 10]: the state at <eot>, which is the last id but one; causal."""

    def __init__(self) -> None:
        super().__init__()
        self.eot_id = 48
        self.words, self.places = nn.Embedding(50, 16), nn.Embedding(32, 16)
        self.attention, self.head = Causal(), nn.Linear(16, 10)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        x = x + self.attention(x)
        return self.head(x[torch.arange(len(x)), self.end(ids)])

    def end(self, ids: Tensor) -> Tensor:
        return (ids == self.eot_id).int().argmax(-1)


class LastPosition(Tower):
    """ids [B, N] -> [B, 10]: the state at <eot>; causal."""

    def end(self, ids: Tensor) -> Tensor:
        return torch.full((len(ids),), ids.shape[1] - 1)


class HighestId(Tower):
    """The state at <eot> of a causal encoder; an id was added behind that of the end token."""

    def end(self, ids: Tensor) -> Tensor:
        return ids.argmax(-1)


class LastRealOne(Tower):
    """Its padding is 0."""

    def end(self, ids: Tensor) -> Tensor:
        return (ids != 0).sum(-1) - 1


@pytest.mark.parametrize(("module", "words"), [(LastPosition, "more padding"), (HighestId, "the last word")])
def test_another_token(module: type[nn.Module], words: str) -> None:
    finding = one("end_token", seeded(module))
    assert (finding.name, finding.severity) == ("end-token-unread", "bug")
    assert words in finding.evidence


@pytest.mark.parametrize("module", [Tower, LastRealOne])
def test_a_healthy_one(module: type[nn.Module]) -> None:
    assert found("end_token", seeded(module)) == []


class LastTokenOnPurpose(nn.Module):
    """Causal; rows are padded on the left, and the last token is read."""

    def __init__(self) -> None:
        super().__init__()
        self.eos_id, self.words, self.attention = 48, nn.Embedding(50, 16), Causal()

    def forward(self, ids: Tensor) -> Tensor:
        return self.attention(self.words(ids))[:, -1]


def test_no_end_token() -> None:
    with pytest.raises(NotApplicable, match="nothing says"):
        found("end_token", seeded(LastTokenOnPurpose))
    with pytest.raises(NotApplicable, match="nothing says"):
        found("end_token", seeded(Plain))
