"""Queries that may attend to nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable, NotChecked
from tests.doctor.laws.specimens import Attention, Causal, found, one, seeded, triangle

LAW = "empty_rows"


class Infinite(Attention):
    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)


def spread(scores: Tensor) -> Tensor:
    """One NaN, and the whole batch is."""
    weights = scores.softmax(-1)
    return weights + 0 * weights.mean()


class CausalPadded(Infinite):
    """padding_mask: [B, K], True = a real token"""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Any:
        keys = self.both(None, padding_mask)
        return self.attend(x, x, None if keys is None else keys & triangle(x.shape[1], x.shape[1]))


class Two(nn.Module):
    """In a stack a NaN row of the first layer is a NaN key of the second: no mistake of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Infinite() for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            x = layer(x, mask)
        return x


@pytest.mark.parametrize(
    ("module", "severity", "numbers", "words"),
    [
        (seeded(Infinite), "risk", {}, "query 2 of example 1"),
        (seeded(Infinite, normalise=spread), "bug", {"others": 14}, "rows of other queries"),
        (seeded(Two), "risk", {}, "query 2 of example 1"),
        (seeded(CausalPadded), "risk", {}, "every key of example 1 is padding"),
    ],
)
def test_nan_where_no_key_is_allowed(module: nn.Module, severity: str, numbers: dict[str, int], words: str) -> None:
    finding = one(LAW, module)
    assert (finding.name, finding.severity, finding.numbers) == ("empty-row-nan", severity, numbers)
    assert words in finding.evidence


class ThenRecurrent(Infinite):
    """mask: [B, Q, K], True = may attend. A GRU follows, which brings what is hidden, and NaN, to later rows."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(16, 16, batch_first=True)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        return self.attend(x, x, None if mask is None else mask[:, None])

    def merge(self, x: Tensor) -> Any:
        return self.gru(super().merge(x))[0]


def test_what_is_healthy_or_not_checked() -> None:
    assert found(LAW, Attention) == []
    with pytest.raises(NotApplicable, match="no mask"):
        found(LAW, Causal)
    with pytest.raises(NotChecked, match="what its mask should hide reaches the output"):
        found(LAW, ThenRecurrent)


def test_nan_in_the_call_that_was_given_is_a_bug() -> None:
    real = torch.ones(2, 5, dtype=torch.bool)
    real[1] = False
    example = ((torch.randn(2, 5, 16),), {"padding_mask": real})
    finding = one(LAW, Infinite, example=example)
    assert finding.severity == "bug"
    assert "returns NaN in 5 of 10 rows" in finding.evidence
    assert found(LAW, Attention, example=example) == []


class History(Infinite):
    """items: [B, N] ids, padded on the left with 0. What follows attention reads the rows of padding too."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 16, padding_idx=0)

    def forward(self, items: Tensor) -> Tensor:
        x, n = self.table(items), items.shape[1]
        allowed = torch.ones(n, n, dtype=torch.bool).tril() & (items != 0)[:, None, None]
        return self.attend(x, x, allowed)[:, -1]

    def merge(self, x: Tensor) -> Tensor:
        return super().merge(x).cumsum(1)


class ContinuesPrompts(History):
    def generate(self, items: Tensor, attention_mask: Tensor) -> Tensor:
        return self(items)


class TwoOfIds(Two):
    """ids: [B, N], 0 = padding."""

    def __init__(self, *, hides_rows: bool) -> None:
        super().__init__()
        self.table, self.hides_rows = nn.Embedding(20, 16, padding_idx=0), hides_rows

    def forward(self, ids: Tensor) -> Tensor:
        real = (ids != 0)[:, None].expand(-1, ids.shape[1], -1)
        return super().forward(self.table(ids), real & real.mT if self.hides_rows else real)


def test_ids_with_padding() -> None:
    for module, severity, where in (
        (seeded(History), "risk", "at their beginning"),
        (seeded(ContinuesPrompts), "bug", "at their beginning"),
        (seeded(TwoOfIds, hides_rows=True), "bug", "at their end"),
    ):
        finding = one(LAW, module)
        assert (finding.name, finding.severity) == ("empty-row-nan", severity)
        assert f"ids with two tokens of padding (id 0) {where} give NaN" in finding.evidence
    with pytest.raises(NotApplicable, match="it takes no mask"):
        found(LAW, seeded(TwoOfIds, hides_rows=False))
