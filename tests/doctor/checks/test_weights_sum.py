"""The sum of the weights that meet the values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.doctor.checks.specimens import found, one, seeded
from tests.doctor.checks.styles import Plain


class Biased(Plain):
    """A learned bias [H, 5, 5] is added to the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(4, 5, 5))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        n = x.shape[1]
        return self.out(self.merge(self.weigh(self.score(q, k), self.table[:, :n, :n]) @ v))

    def weigh(self, scores: Tensor, bias: Tensor) -> Tensor:
        return (scores + bias).softmax(-1)


class AddedAfterwards(Biased):
    def weigh(self, scores: Tensor, bias: Tensor) -> Tensor:
        return scores.softmax(-1) + bias


class ConstantAfterwards(Biased):
    """ALiBi's distances, which no parameter holds."""

    def weigh(self, scores: Tensor, bias: Tensor) -> Tensor:
        at = torch.arange(scores.shape[-1])
        return scores.softmax(-1) + -0.1 * (at[:, None] - at[None]).abs()


class Renormalised(Plain):
    """Slots: a small number is added to the weights, which are then divided by their sum."""

    def normalise(self, scores: Tensor) -> Tensor:
        weights = scores.softmax(-1) + 1e-8
        return weights / weights.sum(-1, keepdim=True)


class DividedByTheMean(Plain):
    def normalise(self, scores: Tensor) -> Tensor:
        weights = scores.softmax(-1) + 1e-8
        return weights / weights.mean(-1, keepdim=True)


@pytest.mark.parametrize("kind", [AddedAfterwards, ConstantAfterwards])
def test_a_bias_after_the_softmax(kind: type[nn.Module]) -> None:
    finding = one("weights_sum", seeded(kind))
    assert (finding.name, finding.severity) == ("bias-after-softmax", "bug")


def test_weights_that_sum_to_the_number_of_keys() -> None:
    finding = one("weights_sum", seeded(DividedByTheMean))
    assert (finding.name, finding.severity, finding.numbers["sum"]) == ("normaliser-wrong", "bug", 5.0)


@pytest.mark.parametrize("kind", [Plain, Biased, Renormalised])
def test_weights_that_sum_to_1(kind: type[nn.Module]) -> None:
    assert found("weights_sum", seeded(kind)) == []


class CutAfterwards(Plain):
    """Two documents in a row, whose weights for one another are removed after the softmax."""

    def normalise(self, scores: Tensor) -> Tensor:
        document = torch.arange(scores.shape[-1]) >= 2
        return scores.softmax(-1) * (document[:, None] == document)


class CutBefore(Plain):
    def normalise(self, scores: Tensor) -> Tensor:
        document = torch.arange(scores.shape[-1]) >= 2
        return scores.masked_fill(document[:, None] != document, -torch.inf).softmax(-1)


class RowsOfZeros(Plain):
    """The first token is padding: its row is set to 0."""

    def normalise(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1) * (torch.arange(scores.shape[-2]) > 0)[:, None]


def test_weights_that_are_cut_after_the_softmax() -> None:
    finding = one("weights_sum", seeded(CutAfterwards))
    assert (finding.name, finding.severity) == ("mask-after-softmax", "bug")
    assert 0.1 < finding.numbers["least"] < 0.9
    assert found("weights_sum", seeded(CutBefore)) == []
    assert found("weights_sum", seeded(RowsOfZeros)) == []


class AttendsToNothing(Plain):
    """exp(x) / (1 + sum of exp(x))"""

    shifts_the_one = True

    def normalise(self, scores: Tensor) -> Tensor:
        most = scores.amax(-1, keepdim=True)
        weights = (scores - most).exp()
        one = (-most).exp() if self.shifts_the_one else 1.0
        return weights / (one + weights.sum(-1, keepdim=True))


class OneIsNotShifted(AttendsToNothing):
    shifts_the_one = False


def test_a_one_that_is_not_shifted_with_the_scores() -> None:
    finding = one("weights_sum", seeded(OneIsNotShifted))
    assert (finding.name, finding.severity) == ("normaliser-wrong", "bug")
    assert "the 1 is not shifted" in finding.evidence
    assert found("weights_sum", seeded(AttendsToNothing)) == []
