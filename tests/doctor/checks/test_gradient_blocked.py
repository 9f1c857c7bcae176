"""Gradients of the inputs, and whether they are right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.patient import NotChecked
from tests.doctor.checks.specimens import Attention, Cross, found, one, seeded


class DetachesTheMemory(Cross):
    def forward(self, x: Tensor, memory: Tensor, memory_mask: Tensor | None = None) -> Tensor:
        return super().forward(x, memory.detach(), memory_mask)


class LeavesAutograd(Attention):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).data


class DetachesWeights(Attention):
    def normalise(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1).detach()


class Softmax(torch.autograd.Function):
    """Its backward forgets the sum."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        weights = scores.softmax(-1)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.saved_tensors[0]


class HandWritten(Attention):
    def normalise(self, scores: Tensor) -> Tensor:
        return Softmax.apply(scores)


class Hard(Attention):
    """One key a query, with the gradient of all: straight-through."""

    def normalise(self, scores: Tensor) -> Tensor:
        soft = scores.softmax(-1)
        return functional.one_hot(soft.argmax(-1), soft.shape[-1]).to(soft) + soft - soft.detach()


class Root(Attention):
    """The root of 0 has no gradient."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k) + 0 * (k - k).abs().sqrt().sum()


class Stable(Attention):
    """What is subtracted may be detached: the softmax does not change."""

    def normalise(self, scores: Tensor) -> Tensor:
        e = (scores - scores.amax(-1, keepdim=True).detach()).exp()
        return e / e.sum(-1, keepdim=True)


def test_an_input_that_gets_none() -> None:
    finding = one("gradient_blocked", seeded(DetachesTheMemory))
    assert (finding.name, finding.severity) == ("gradient-blocked", "bug")
    assert finding.evidence.startswith("the key gets no gradient")
    assert finding.numbers["change"] > 0.01
    assert one("gradient_blocked", seeded(LeavesAutograd)).name == "gradient-blocked"


def test_gradients_that_are_not_those_of_the_output() -> None:
    for kind in (DetachesWeights, HandWritten):
        finding = one("gradient_blocked", seeded(kind))
        assert (finding.name, finding.severity) == ("gradient-wrong", "bug")
        measured, gradient = finding.numbers["measured"], finding.numbers["gradient"]
        assert abs(measured - gradient) > 0.02 * abs(measured)


def test_an_estimate_is_a_risk() -> None:
    finding = one("gradient_blocked", seeded(Hard))
    assert (finding.name, finding.severity) == ("gradient-wrong", "risk")
    assert "straight-through" in finding.evidence


def test_gradients_that_are_not_finite() -> None:
    finding = one("gradient_blocked", seeded(Root))
    assert finding.name == "gradient-wrong"
    assert finding.numbers["not finite"] > 0


def test_healthy_ones() -> None:
    for kind in (Attention, Cross, Stable):
        assert found("gradient_blocked", seeded(kind)) == []


class Series(Attention):
    """The mean and the deviation of each series are taken off, and put back."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True).detach()
        deviation = (x - mean).std(1, keepdim=True).detach() + 1e-5
        x = (x - mean) / deviation
        return self.attend(x, x, None) * deviation + mean


class DetachesTheSeries(Series):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x.square().detach() * x


def test_statistics_over_time_are_detached_on_purpose() -> None:
    assert found("gradient_blocked", seeded(Series)) == []
    assert one("gradient_blocked", seeded(DetachesTheSeries)).name == "gradient-wrong"


class Predicts(nn.Module):
    """Returns the hidden states [B, N + 1, M], and beside them what is predicted [B, N, M] without training them."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = Attention(), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.attention(x)
        return torch.cat((x, x[:, :1]), 1), self.head(x.detach())


class DetachesTheFirst(Predicts):
    """What it returns first is what has no gradient."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        states, predicted = super().forward(x)
        return predicted, states


def test_a_part_of_what_is_returned_that_is_predicted_without_gradients() -> None:
    with pytest.raises(NotChecked, match="what it returns first has gradients"):
        found("gradient_blocked", seeded(Predicts))
    assert one("gradient_blocked", seeded(DetachesTheFirst)).name == "gradient-blocked"
