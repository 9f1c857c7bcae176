"""Which tokens the terms that are added to a score come from."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.patient import NotApplicable
from tests.doctor.checks.specimens import Attention, Causal, found, one, seeded
from tests.doctor.checks.styles import Plain, assert_at


class Relative(Plain):
    """A score of each query with each distance (Transformer-XL), 2 N - 1 of them, shifted to the keys."""

    def __init__(self) -> None:
        super().__init__()
        self.distances = nn.Parameter(torch.randn(64, 4))

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        scores = self.score(q, k) + self.shifted(q @ self.distances[: self.number(x.shape[1])].T)
        return self.out(self.merge(self.masked(scores).softmax(-1) @ v))

    def number(self, length: int) -> int:
        return 2 * length - 1

    def shifted(self, scores: Tensor) -> Tensor:
        n = scores.shape[-2]
        padded = functional.pad(scores, (1, 0)).flatten(2).unflatten(2, (-1, n))
        return padded[:, :, 1:].reshape(scores.shape)[..., :n]

    def masked(self, scores: Tensor) -> Tensor:
        return scores


class OneRowOff(Relative):
    def shifted(self, scores: Tensor) -> Tensor:
        n = scores.shape[-2]
        padded = functional.pad(scores, (1, 0)).flatten(2).unflatten(2, (-1, n))
        return padded[:, :, :-1].reshape(scores.shape)[..., :n]


class TooFew(Relative):
    """N distances: after the shift, keys behind the query have those of the next query."""

    def number(self, length: int) -> int:
        return length


class TooFewButCausal(TooFew):
    """As in Transformer-XL: what the shift leaves behind the query is masked."""

    def masked(self, scores: Tensor) -> Tensor:
        return scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)


class OfTheKey(Relative):
    """A score of each key is added too, to its column, and one of each query to its row."""

    def shifted(self, scores: Tensor) -> Tensor:
        own = scores[..., 0]
        return own[..., None] + own[..., None, :]


class FromKeys(Relative):
    """A score of each key with the distance to each query (DeBERTa), computed as [K, Q]."""

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        n = x.shape[1]
        apart = torch.arange(n) - torch.arange(n)[:, None] + n
        of_keys = (k @ self.distances[: 2 * n].T).gather(-1, apart.expand(len(x), self.heads, n, n))
        scores = self.score(q, k) + self.shifted(of_keys)
        return self.out(self.merge(scores.softmax(-1) @ v))

    def shifted(self, scores: Tensor) -> Tensor:
        return scores.mT


class AsTheyWereGathered(FromKeys):
    def shifted(self, scores: Tensor) -> Tensor:
        return scores


class OfAnotherKey(Relative):
    def shifted(self, scores: Tensor) -> Tensor:
        return scores[..., 0].roll(1, -1)[..., None, :].expand(*scores.shape[:3], scores.shape[2])


@pytest.mark.parametrize("kind", [OneRowOff, TooFew, OfAnotherKey])
def test_a_term_of_other_tokens(kind: type[nn.Module]) -> None:
    finding = one("scores_misaligned", seeded(kind))
    assert (finding.name, finding.severity) == ("scores-misaligned", "bug")
    assert_at(finding, Relative, "scores = self.score(q, k) + self.shifted")


def test_a_term_of_the_keys_that_is_not_transposed() -> None:
    finding = one("scores_misaligned", seeded(AsTheyWereGathered))
    assert "the score of query 0 and key 1 comes from token 0" in finding.evidence


def test_the_token_is_named() -> None:
    """N distances: the first cell behind its query's own row is that of query 0 and key 2."""
    finding = one("scores_misaligned", seeded(TooFew))
    assert "what is added to the score of query 0 and key 2 comes from token 1" in finding.evidence


@pytest.mark.parametrize("kind", [Relative, TooFewButCausal, OfTheKey, FromKeys])
def test_a_healthy_one(kind: type[nn.Module]) -> None:
    assert found("scores_misaligned", seeded(kind)) == []


@pytest.mark.parametrize("kind", [Attention, Causal])
def test_without_such_a_term(kind: type[nn.Module]) -> None:
    with pytest.raises(NotApplicable, match="no term that depends on a token"):
        found("scores_misaligned", seeded(kind))


class Triangle(nn.Module):
    """Attention of pairs x [B, N, N, M]: of (i, j) and (i, k), with a bias of the pair (j, k) (AlphaFold 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.bias = (nn.Linear(16, width) for width in (16, 16, 16, 4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (4, 4)).transpose(2, 3) for f in (self.q, self.k, self.v))
        scores = q @ k.mT / 2 + self.bias(x).permute(0, 3, 1, 2)[:, None]
        return (scores.softmax(-1) @ v).transpose(2, 3).flatten(3)


def test_maps_of_pairs_are_not_judged() -> None:
    with pytest.raises(NotApplicable, match="its tokens may be pairs"):
        found("scores_misaligned", seeded(Triangle))
