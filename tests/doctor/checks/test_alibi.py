"""Slopes of ALiBi for any number of heads."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotChecked
from tests.doctor.checks.specimens import found, one, seeded
from tests.doctor.checks.styles import Einsum, Plain, assert_at

FOUR = [2**-2, 2**-4, 2**-6, 2**-8]
SIX = [*FOUR, 2**-1, 2**-3]


class Biased(Plain):
    """Symmetric: the bias falls to both sides."""

    def __init__(self, slopes: list[float]) -> None:
        super().__init__(4 * len(slopes), len(slopes))
        self.register_buffer("slopes", torch.tensor(slopes))

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        at = torch.arange(k.shape[2])
        return q @ k.mT / math.sqrt(q.shape[-1]) + self.bias(at)

    def bias(self, at: Tensor) -> Tensor:
        return -self.slopes[:, None, None] * (at - at[:, None]).abs()

    def normalise(self, scores: Tensor) -> Tensor:
        return torch.softmax(scores, dim=-1)


class CausalEinsum(Einsum):
    """Press et al.: causal, the bias falls into the past."""

    def __init__(self, slopes: list[float]) -> None:
        super().__init__(4 * len(slopes), len(slopes))
        self.register_buffer("slopes", torch.tensor(slopes))

    def scaled(self, scores: Tensor) -> Tensor:
        n = scores.shape[-1]
        distance = torch.arange(n) - torch.arange(n)[:, None]
        biased = scores / 2 + self.slopes[:, None, None] * distance
        return biased.masked_fill(distance > 0, float("-inf"))


class ByKeyPosition(CausalEinsum):
    """Bloom's: the bias is by key position alone; the softmax does not see the difference."""

    def scaled(self, scores: Tensor) -> Tensor:
        n = scores.shape[-1]
        later = torch.ones(n, n, dtype=torch.bool).triu(1)
        return (scores / 2 + self.slopes[:, None, None] * torch.arange(n)).masked_fill(later, -1e9)


@pytest.mark.parametrize("style", [Biased, CausalEinsum, ByKeyPosition])
@pytest.mark.parametrize("slopes", [FOUR, SIX], ids=["four heads", "six heads"])
def test_a_healthy_one(style: type[nn.Module], slopes: list[float]) -> None:
    assert found("alibi", seeded(style, slopes)) == []


PLAIN_SIX = [2 ** (-8 * (i + 1) / 6) for i in range(6)]


@pytest.mark.parametrize("style", [Biased, CausalEinsum])
def test_the_formula_of_powers_of_two_for_six_heads(style: type[nn.Module]) -> None:
    finding = one("alibi", seeded(style, PLAIN_SIX))
    assert (finding.name, finding.severity) == ("alibi-slopes", "bug")
    assert "by 0.3969, 0.1575, 0.0625," in finding.evidence
    assert "in the 6 heads; expected 0.25, 0.0625, 0.01562, 0.003906, 0.5, 0.125" in finding.evidence


def test_the_line_of_the_softmax() -> None:
    assert_at(one("alibi", seeded(Biased, PLAIN_SIX)), Biased, "torch.softmax(scores, dim=-1)")


def test_a_bias_that_rises_with_the_distance() -> None:
    finding = one("alibi", seeded(Biased, [-x for x in FOUR]))
    assert (finding.name, finding.severity) == ("alibi-slopes", "bug")
    assert "a negative slope favours distant keys" in finding.evidence


def test_slopes_of_another_family_are_a_risk() -> None:
    assert one("alibi", seeded(Biased, [0.1, 0.9, 0.3, 0.4])).severity == "risk"


class TopThree(Plain):
    """Only the three highest scores of a query are left."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        scores = q @ k.mT / 2
        third = scores.topk(min(3, scores.shape[-1]), dim=-1).values[..., -1:]
        return scores.masked_fill(scores < third, -torch.inf)


def test_where_there_is_no_such_bias() -> None:
    with pytest.raises(NotChecked, match="no bias that falls"):
        found("alibi", seeded(Plain))
    with pytest.raises(NotChecked, match="no bias that falls"):
        found("alibi", seeded(TopThree))


class Near(Biased):
    """A learned number for the token itself and one for each neighbour: two numbers lie on a line, and mean nothing."""

    def bias(self, at: Tensor) -> Tensor:
        apart = (at - at[:, None]).abs()
        return torch.where(apart > 1, -torch.inf, self.slopes[:, None, None] * apart)


def test_few_distances_are_no_slope() -> None:
    with pytest.raises(NotChecked, match="no bias that falls"):
        found("alibi", seeded(Near, FOUR))


class Signed(Biased):
    """Every key is seen, and later ones are favoured the further they are."""

    def bias(self, at: Tensor) -> Tensor:
        return self.slopes[:, None, None] * (at - at[:, None])


class SignedAndMasked(Signed):
    """mask: [B, Q, K], True = may attend: a decoder passes one that hides later keys."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.attend(x, x, None if mask is None else mask[:, None])

    def normalise(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)


def test_later_keys_that_are_favoured_by_their_distance() -> None:
    finding = one("alibi", seeded(Signed, FOUR))
    assert (finding.name, finding.severity) == ("alibi-slopes", "bug")
    assert "rises with that of later ones, by up to 0.25" in finding.evidence
    assert found("alibi", seeded(SignedAndMasked, FOUR)) == []
