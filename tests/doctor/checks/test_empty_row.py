"""Queries that may attend to nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import headwise
from headwise.doctor.patient import NotApplicable, NotChecked
from tests.doctor.checks.specimens import Attention, Causal, found, one, seeded


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


def test_nan_in_the_row_itself_is_a_risk() -> None:
    finding = one("empty_row", seeded(Infinite))
    assert (finding.name, finding.severity) == ("empty-row-nan", "risk")
    assert finding.numbers["rows"] == 1
    assert finding.numbers["others"] == 0
    assert finding.numbers["parameters"] > 0  # NaN in their gradients, though the loss leaves the row out


def test_nan_in_other_rows_is_a_bug() -> None:
    finding = one("empty_row", seeded(Spreads))
    assert (finding.name, finding.severity) == ("empty-row-nan", "bug")
    assert finding.numbers["others"] == 14


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


def test_padding_on_the_left_of_a_causal_sequence() -> None:
    finding = one("empty_row", seeded(CausalPadded))
    assert (finding.severity, finding.numbers["rows"]) == ("risk", 2)
    assert "begins with two tokens of padding" in finding.evidence


def test_a_mask_that_all_examples_share() -> None:
    finding = one("empty_row", seeded(ForAll))
    assert (finding.severity, finding.numbers["rows"], finding.numbers["others"]) == ("risk", 3, 0)


def test_a_stack_spreads_it_by_nature() -> None:
    assert one("empty_row", seeded(Two)).severity == "risk"


def test_a_healthy_one() -> None:
    assert found("empty_row", seeded(Attention)) == []
    with pytest.raises(NotChecked, match="no mask"):
        found("empty_row", seeded(Causal))


def test_nan_in_the_call_that_was_given_is_a_bug() -> None:
    real = torch.ones(2, 5, dtype=torch.bool)
    real[1] = False
    for module, names in ((Infinite, ["empty-row-nan"]), (Attention, [])):
        example = ((torch.randn(2, 5, 16),), {"padding_mask": real})
        bugs = headwise.diagnose(seeded(module), example=example).bugs
        assert [x.name for x in bugs] == names
        assert all("returns NaN in 5 of 10 rows" in x.evidence for x in bugs)


class PaddedOnTheLeft(CausalPadded):
    """padding_mask: [B, K], with zeros on the left where a prompt is shorter."""

    def generate(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        return x


def test_it_is_a_bug_where_padding_on_the_left_is_promised() -> None:
    finding = one("empty_row", seeded(PaddedOnTheLeft))
    assert (finding.severity, finding.numbers["rows"]) == ("bug", 2)
    assert "it is meant for such input" in finding.evidence


class OfTextAlone(Infinite):
    """padding_mask: [B, N], True = real. A sample without an image has a padding_mask of zeros."""


class NeverEmpty(Infinite):
    """padding_mask: [B, N], True = real. A padding_mask of zeros must not be passed."""


def test_it_is_a_bug_where_masks_of_zeros_are_promised() -> None:
    finding = one("empty_row", seeded(OfTextAlone))
    assert (finding.name, finding.severity) == ("empty-row-nan", "bug")
    assert "A sample without an image has a padding_mask of zeros" in finding.evidence
    assert one("empty_row", seeded(NeverEmpty)).severity == "risk"


class Relations(Attention):
    """relations: [B, N, N] ids, 0 where there is none; padding has rows and columns of zeros."""

    fill_value = -torch.inf

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Embedding(5, 4)

    def forward(self, nodes: Tensor, relations: Tensor) -> Tensor:
        q, k, v = (self.split(w(nodes)) for w in (self.q, self.k, self.v))
        scores = self.score(q, k) + self.bias(relations).permute(0, 3, 1, 2)
        scores = scores.masked_fill((relations == 0)[:, None], self.fill_value)
        return self.out(self.merge(self.normalise(scores) @ v))


class RelationsOfAFiniteFill(Relations):
    fill_value = -1e9


def test_ids_of_pairs_that_leave_a_token_no_key() -> None:
    finding = one("empty_row", seeded(Relations))
    assert (finding.name, finding.severity) == ("empty-row-nan", "bug")
    assert "relations is 0 between token 2 of example 1 and every token" in finding.evidence
    assert found("empty_row", seeded(RelationsOfAFiniteFill)) == []


class Sentences(nn.Module):
    """documents: [B, S, N] ids, 0 = padding. Words become sentences, and sentences a document."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.word, self.sentence = nn.Embedding(20, 16, padding_idx=0), nn.Linear(16, 1), nn.Linear(16, 1)

    def forward(self, documents: Tensor) -> Tensor:
        b, s, n = documents.shape
        real, x = documents != 0, self.words(documents).view(b, s, n, 16)
        sentences = (self.weigh(self.word(x.tanh()), real) * x).sum(2)
        return (self.weigh(self.sentence(sentences.tanh()), real.any(-1)) * sentences).sum(1)

    def weigh(self, scores: Tensor, real: Tensor) -> Tensor:
        return scores.masked_fill(~real[..., None], -torch.inf).softmax(-2)


class SentencesOfAFiniteFill(Sentences):
    def weigh(self, scores: Tensor, real: Tensor) -> Tensor:
        return scores.masked_fill(~real[..., None], -1e9).softmax(-2)


def test_a_sentence_of_padding_alone() -> None:
    finding = one("empty_row", seeded(Sentences))
    assert (finding.name, finding.severity) == ("empty-row-nan", "bug")
    assert "ids of 4 rows of which the last is padding (id 0) alone" in finding.evidence
    with pytest.raises(NotChecked):
        found("empty_row", seeded(SentencesOfAFiniteFill))


class History(Causal):
    """items: [B, N] ids, padded on the left with 0."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 16, padding_idx=0)

    def forward(self, items: Tensor) -> Tensor:
        x, n = self.table(items), items.shape[1]
        real = (items != 0)[:, None, None]
        allowed = torch.ones(n, n, dtype=torch.bool).tril() & real
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        scores = self.score(q, k).masked_fill(~allowed, self.far)
        return self.out(self.merge(scores.softmax(-1) @ v))[:, -1]

    far = -1e9


class HistoryOfNaN(History):
    """items: [B, N] ids, padded on the left with 0."""

    far = -torch.inf

    def merge(self, x: Tensor) -> Tensor:
        return super().merge(x).cumsum(1)  # what follows reads the rows of padding too


def test_ids_that_begin_with_padding() -> None:
    finding = one("empty_row", seeded(HistoryOfNaN))
    assert (finding.name, finding.severity) == ("empty-row-nan", "risk")
    assert "ids that begin with two tokens of padding (id 0) give NaN" in finding.evidence
    with pytest.raises(NotChecked, match="one row for every query"):
        found("empty_row", seeded(History))


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


def test_rows_of_padding_that_spread() -> None:
    finding = one("empty_row", seeded(TwoLayers))
    assert (finding.name, finding.severity) == ("empty-row-nan", "bug")
    assert "for the tokens before them" in finding.evidence
    with pytest.raises(NotApplicable, match="it takes no mask"):
        found("empty_row", seeded(lambda: TwoLayers(hides_rows=False)))
