"""What is added to the scores, and the scale."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.laws import added_terms
from headwise.doctor.patient import NotApplicable
from tests.doctor.laws.specimens import Attention, found, one, seeded
from tests.doctor.laws.styles import Plain, assert_at


class Biased(Plain):
    """A learned bias by distance and head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(63, 4))

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        n = torch.arange(q.shape[2])
        return self.together(q @ k.mT, self.table[n[:, None] - n + 31].permute(2, 0, 1), q.shape[-1] ** -0.5)

    def together(self, products: Tensor, bias: Tensor, scale: float) -> Tensor:
        return products * scale + bias


class BiasTimesScale(Biased):
    def together(self, products: Tensor, bias: Tensor, scale: float) -> Tensor:
        return (products + bias) * scale


class FoldedIntoTheExponent(Biased):
    def together(self, products: Tensor, bias: Tensor, scale: float) -> Tensor:
        return bias + products

    def normalise(self, scores: Tensor) -> Tensor:
        e = ((scores - scores.amax(-1, keepdim=True)) / 2).exp()
        return e / e.sum(-1, keepdim=True)


class Undone(Biased):
    """The bias is divided by the scale first."""

    def together(self, products: Tensor, bias: Tensor, scale: float) -> Tensor:
        return (products + bias / scale) * scale


class Embedded(Biased):
    """The bias comes from an nn.Embedding, on scaled queries."""

    def __init__(self) -> None:
        super().__init__()
        self.relative_attention_bias = nn.Embedding(63, 4)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        n = torch.arange(q.shape[2])
        return (q / 2) @ k.mT + self.relative_attention_bias(n[:, None] - n + 31).permute(2, 0, 1)


class AddsMask(Attention):
    """mask: [B, Q, K], float, added to the attention scores."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (self.split(w(x)) for w in (self.q, self.k, self.v))
        return self.out(self.merge(self.sum(q @ k.mT, None if mask is None else mask[:, None]).softmax(-1) @ v))

    def sum(self, products: Tensor, mask: Tensor | None) -> Tensor:
        return products / 2 if mask is None else products / 2 + mask


class ScalesMask(AddsMask):
    def sum(self, products: Tensor, mask: Tensor | None) -> Tensor:
        return (products if mask is None else products + mask) / 2


@pytest.mark.parametrize("kind", [BiasTimesScale, FoldedIntoTheExponent, ScalesMask])
def test_a_bias_that_is_scaled(kind: type[nn.Module]) -> None:
    finding = one("added_terms", seeded(kind))
    assert (finding.name, finding.severity) == ("wrong-scale", "bug")
    assert finding.numbers["factor"] == pytest.approx(0.5, rel=1e-3)
    assert finding.evidence.startswith("the numbers of mask" if kind is ScalesMask else "table")
    if kind is BiasTimesScale:
        assert_at(finding, kind, "(products + bias)")


@pytest.mark.parametrize("kind", [Biased, Undone, Embedded, AddsMask])
def test_a_healthy_one(kind: type[nn.Module]) -> None:
    assert found("added_terms", seeded(kind)) == []


def test_without_a_bias() -> None:
    with pytest.raises(NotApplicable):
        found("added_terms", seeded(Plain))


# Terms of tokens.


def misaligned(module: nn.Module) -> Any:
    return next((x for x in found("added_terms", module) if x.name == "scores-misaligned"), None)


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
    finding = misaligned(seeded(kind))
    assert (finding.name, finding.severity) == ("scores-misaligned", "bug")
    assert_at(finding, Relative, "scores = self.score(q, k) + self.shifted")


def test_a_term_of_the_keys_that_is_not_transposed() -> None:
    finding = misaligned(seeded(AsTheyWereGathered))
    assert "the score of query 0 and key 1 comes from token 0" in finding.evidence


def test_the_token_is_named() -> None:
    """N distances: the first cell behind its query's own row is that of query 0 and key 2."""
    finding = misaligned(seeded(TooFew))
    assert "what is added to the score of query 0 and key 2 comes from token 1" in finding.evidence


@pytest.mark.parametrize("kind", [Relative, TooFewButCausal, OfTheKey, FromKeys])
def test_a_term_of_its_own_tokens(kind: type[nn.Module]) -> None:
    assert misaligned(seeded(kind)) is None


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
    assert misaligned(seeded(Triangle)) is None


def test_terms_without_the_scale() -> None:
    (risk,) = found("added_terms", seeded(Relative))
    assert (risk.name, risk.severity) == ("wrong-scale", "risk")
    assert risk.numbers == pytest.approx({"scale": 0.5, "factor": 1.0})


def test_whole_numbers() -> None:
    change = torch.tensor([[0.0, 1.0, 3.0, 2.0]]) + 0.3  # the 0.3 is that of the row
    assert added_terms.rises_by(change, 1.0)
    assert not added_terms.rises_by(change / 4, 1.0)
    assert added_terms.rises_by(change / 4, 0.25)
    assert not added_terms.rises_by(torch.full((1, 4), 0.3), 1.0)
    assert added_terms.rises_by(torch.tensor([[-torch.inf, 0.0, 1.0, 2.0, 0.0]]), 1.0)
