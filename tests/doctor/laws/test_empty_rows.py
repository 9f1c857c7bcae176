"""Queries that may attend to nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise
from headwise.doctor.patient import NotApplicable, NotChecked
from tests.doctor.laws.specimens import Attention, Causal, found, one, seeded


class Infinite(Attention):
    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)


class Spreads(Infinite):
    """One NaN, and the whole batch is."""

    def normalise(self, scores: Tensor) -> Tensor:
        weights = scores.softmax(-1)
        return weights + 0 * weights.mean()


class Two(nn.Module):
    """In a stack a NaN row of the first layer is a NaN key of the second: no mistake of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Infinite() for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            x = layer(x, mask)
        return x


class ForAll(Infinite):
    """mask: [N, N], True = may attend"""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None and mask.ndim != 2:
            raise ValueError("mask: expected [N, N]")
        return self.attend(x, x, mask)


class CausalPadded(Infinite):
    """padding_mask: [B, K], True = a real token"""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        keys = self.both(None, padding_mask)
        return self.attend(x, x, causal if keys is None else causal & keys)

    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        filled = super().fill(scores, allowed)  # a row without a key keeps its mean, if it has no key at all
        nothing = (allowed == 0).all(-1, keepdim=True) & (allowed == 0).all((-1, -2), keepdim=True)
        return filled.masked_fill(nothing, 0)


@pytest.mark.parametrize(
    ("kind", "severity", "rows", "others", "words"),
    [
        (Infinite, "risk", 1, 0, "query 2 of example 1"),
        (Spreads, "bug", 1, 14, "rows of other queries"),
        (Two, "risk", 1, 4, "query 2 of example 1"),
        (ForAll, "risk", 3, 0, "query 2 has no allowed key"),
        (CausalPadded, "risk", 2, 0, "begins with two tokens of padding"),
    ],
)
def test_nan_where_no_key_is_allowed(kind: type[nn.Module], severity: str, rows: int, others: int, words: str) -> None:
    finding = one("empty_rows", seeded(kind))
    assert (finding.name, finding.severity) == ("empty-row-nan", severity)
    assert (finding.numbers["rows"], finding.numbers["others"]) == (rows, others)
    assert words in finding.evidence


def test_gradients_are_spoilt_though_the_loss_leaves_the_row_out() -> None:
    assert one("empty_rows", seeded(Infinite)).numbers["parameters"] > 0


def test_a_healthy_one() -> None:
    assert found("empty_rows", seeded(Attention)) == []
    with pytest.raises(NotApplicable, match="no mask"):
        found("empty_rows", seeded(Causal))


class ThenRecurrent(Infinite):
    """mask: [B, Q, K], True = may attend. A GRU follows, which brings what is hidden, and NaN, to later rows."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(16, 16, batch_first=True)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        return self.attend(x, x, None if mask is None else mask[:, None])

    def merge(self, x: Tensor) -> Any:
        return self.gru(super().merge(x))[0]


def test_rows_of_what_brings_tokens_to_others_are_not_checked() -> None:
    with pytest.raises(NotChecked, match="what its mask should hide reaches the output"):
        found("empty_rows", seeded(ThenRecurrent))


def test_nan_in_the_call_that_was_given_is_a_bug() -> None:
    real = torch.ones(2, 5, dtype=torch.bool)
    real[1] = False
    for module, names in ((Infinite, ["empty-row-nan"]), (Attention, [])):
        example = ((torch.randn(2, 5, 16),), {"padding_mask": real})
        bugs = headwise.diagnose(seeded(module), example=example).bugs
        assert [x.name for x in bugs] == names
        assert all("returns NaN in 5 of 10 rows" in x.evidence for x in bugs)


class History(Causal):
    """items: [B, N] ids, padded on the left with 0."""

    far = -1e9

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 16, padding_idx=0)

    def forward(self, items: Tensor) -> Tensor:
        x, n = self.table(items), items.shape[1]
        allowed = torch.ones(n, n, dtype=torch.bool).tril() & (items != 0)[:, None, None]
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        scores = self.score(q, k).masked_fill(~allowed, self.far)
        return self.out(self.merge(scores.softmax(-1) @ v))[:, -1]


class HistoryOfNaN(History):
    far = -torch.inf

    def merge(self, x: Tensor) -> Tensor:
        return super().merge(x).cumsum(1)  # what follows reads the rows of padding too


class ContinuesPrompts(HistoryOfNaN):
    def generate(self, items: Tensor, attention_mask: Tensor) -> Tensor:
        return self(items)


class TwoLayers(nn.Module):
    """ids: [B, N], 0 = padding."""

    def __init__(self, *, hides_rows: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 16, padding_idx=0)
        self.layers, self.hides_rows = nn.ModuleList(Infinite() for _ in range(2)), hides_rows

    def forward(self, ids: Tensor) -> Tensor:
        x, real = self.table(ids), ids != 0
        allowed = real[:, None, None] & real[:, None, :, None] if self.hides_rows else real[:, None, None]
        for layer in self.layers:
            x = x + layer.attend(x, x, allowed)
        return x


def test_ids_with_padding() -> None:
    for kind, severity in ((HistoryOfNaN, "risk"), (ContinuesPrompts, "bug")):
        finding = one("empty_rows", seeded(kind))
        assert (finding.name, finding.severity) == ("empty-row-nan", severity)
        assert "ids that begin with two tokens of padding (id 0) give NaN" in finding.evidence
    finding = one("empty_rows", seeded(TwoLayers))
    assert (finding.name, finding.severity) == ("empty-row-nan", "bug")
    assert "for the tokens before them" in finding.evidence
    with pytest.raises(NotChecked, match="one row for every query"):
        found("empty_rows", seeded(History))
    with pytest.raises(NotApplicable, match="it takes no mask"):
        found("empty_rows", seeded(lambda: TwoLayers(hides_rows=False)))
