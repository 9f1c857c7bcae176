"""What is added to the scores, and the scale."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.finding import Finding
from tests.doctor.laws.specimens import Attention, found, one
from tests.doctor.laws.styles import Plain, assert_at

torch.manual_seed(0)  # for the modules that are made here


class Biased(Plain):
    """A learned bias by distance and head."""

    def __init__(self, together: Any = lambda products, bias: products / 2 + bias, **parts: Any) -> None:
        super().__init__(together=together, **parts)
        self.table = nn.Embedding(63, 4)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        n = torch.arange(q.shape[2])
        return self.together(q @ k.mT, self.table(n[:, None] - n + 31).permute(2, 0, 1))


def halved(scores: Tensor) -> Tensor:
    e = ((scores - scores.amax(-1, keepdim=True)) / 2).exp()
    return e / e.sum(-1, keepdim=True)


@pytest.mark.parametrize("module", [Biased(lambda a, b: (a + b) / 2), Biased(lambda a, b: b + a, normalise=halved)])
def test_a_bias_that_is_scaled(module: nn.Module) -> None:
    finding = one("added_terms", module)
    assert (finding.name, finding.severity) == ("wrong-scale", "bug")
    assert finding.numbers["scale"] == pytest.approx(0.5, rel=1e-3)
    assert finding.evidence.startswith("table.weight is added to the products")


@pytest.mark.parametrize("module", [Biased(), Biased(lambda a, b: (a + 2 * b) / 2), Plain()])
def test_a_bias_that_is_not(module: nn.Module) -> None:
    assert found("added_terms", module) == []


# Terms of tokens.


class Relative(Attention):
    """A score of each query with each distance (Transformer-XL), 2 N - 1 of them, shifted to the keys."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.distances = nn.Parameter(torch.randn(64, 4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(w(x)) for w in (self.q, self.k, self.v))
        scores = self.score(q, k) + self.shifted(self.terms(q, k))
        return self.out(self.merge(self.masked(scores).softmax(-1) @ v))

    def terms(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ self.distances[: self.number(q.shape[2])].T

    def shifted(self, scores: Tensor) -> Tensor:
        n = scores.shape[-2]
        padded = functional.pad(scores, (1, 0)).flatten(2).unflatten(2, (-1, n))
        return padded[:, :, self.rows].reshape(scores.shape)[..., :n]

    rows, number, masked = (
        slice(1, None),
        staticmethod(lambda length: 2 * length - 1),
        staticmethod(lambda scores: scores),
    )


class FromKeys(Relative):
    """A score of each key with the distance to each query (DeBERTa), computed as [K, Q]."""

    def terms(self, q: Tensor, k: Tensor) -> Tensor:
        n = q.shape[2]
        apart = torch.arange(n) - torch.arange(n)[:, None] + n
        return (k @ self.distances[: 2 * n].T).gather(-1, apart.expand(len(q), self.heads, n, n))


def of_another_key(scores: Tensor) -> Tensor:
    return scores[..., 0].roll(1, -1)[..., None, :].expand(*scores.shape[:3], scores.shape[2])


def of_row_and_column(scores: Tensor) -> Tensor:
    return scores[..., 0, None] + scores[..., None, :, 0]


def causal(scores: Tensor) -> Tensor:
    return scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)


ONE_ROW_OFF = slice(-1)
TOO_FEW = Relative(number=lambda length: length)  # keys behind the query have the distances of the next query


def bugs(module: nn.Module) -> list[Finding]:
    return [x for x in found("added_terms", module) if x.severity == "bug"]


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Relative(rows=ONE_ROW_OFF), ""),
        (TOO_FEW, "what is added to the score of query 0 and key 2 comes from token 1"),
        (Relative(shifted=of_another_key), ""),
        (FromKeys(shifted=lambda scores: scores), "the score of query 0 and key 1 comes from token 0"),
    ],
)
def test_a_term_of_other_tokens(module: nn.Module, words: str) -> None:
    (finding,) = bugs(module)
    assert finding.name == "scores-misaligned"
    assert words in finding.evidence
    assert_at(finding, Relative, "scores = self.score(q, k) + self.shifted")


class Triangle(nn.Module):
    """Attention of pairs x [B, N, N, M]: of (i, j) and (i, k), with a bias of the pair (j, k) (AlphaFold 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.bias = (nn.Linear(16, width) for width in (16, 16, 16, 4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (4, 4)).transpose(2, 3) for f in (self.q, self.k, self.v))
        scores = q @ k.mT / 2 + self.bias(x).permute(0, 3, 1, 2)[:, None]
        return (scores.softmax(-1) @ v).transpose(2, 3).flatten(3)


@pytest.mark.parametrize(
    "module",
    [
        *(Relative(), Relative(shifted=of_row_and_column), FromKeys(shifted=lambda scores: scores.mT), Triangle()),
        Relative(number=lambda length: length, masked=causal),  # as in Transformer-XL
    ],
)
def test_a_term_of_its_own_tokens(module: nn.Module) -> None:
    assert bugs(module) == []


def test_terms_without_the_scale() -> None:
    finding = found("added_terms", Relative())[0]
    assert (finding.name, finding.severity) == ("wrong-scale", "risk")
    assert finding.numbers["scale"] == pytest.approx(0.5)
