"""Gradients of the inputs, and whether they are right."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from headwise.doctor.laws.derivatives import Slope
from tests.doctor.laws.specimens import Attention, Cross, found, one, seeded

LAW = "derivatives"


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


def test_an_input_that_gets_none() -> None:
    finding = one(LAW, seeded(DetachesTheMemory))
    assert (finding.name, finding.severity) == ("gradient-blocked", "bug")
    assert finding.evidence.startswith("the key gets no gradient")
    assert finding.numbers["change"] > 0.01
    assert one(LAW, seeded(LeavesAutograd)).name == "gradient-blocked"


def test_gradients_that_are_not_those_of_the_output() -> None:
    for kind in (DetachesWeights, HandWritten):
        finding = one(LAW, seeded(kind))
        assert (finding.name, finding.severity) == ("gradient-wrong", "bug")
        measured, gradient = finding.numbers["measured"], finding.numbers["gradient"]
        assert abs(measured - gradient) > 0.02 * abs(measured)


def test_an_estimate_is_a_risk() -> None:
    finding = one(LAW, seeded(Hard))
    assert (finding.name, finding.severity) == ("gradient-wrong", "risk")
    assert "straight-through" in finding.evidence


def test_gradients_that_are_not_finite() -> None:
    finding = one(LAW, seeded(Root))
    assert finding.name == "gradient-wrong"
    assert finding.numbers["not finite"] > 0


def test_healthy_ones() -> None:
    for kind in (Attention, Cross):
        assert found(LAW, seeded(kind)) == []


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
    assert found(LAW, seeded(Series)) == []
    assert one(LAW, seeded(DetachesTheSeries)).name == "gradient-wrong"


def test_when_a_slope_fits() -> None:
    assert Slope(measured=2.0, smaller=2.0, said=2.01, length=3.0).fits
    assert not Slope(measured=2.0, smaller=2.0, said=2.5, length=3.0).fits
    assert Slope(measured=2.0, smaller=2.4, said=2.5, length=3.0).fits  # a kink: the two steps disagree
    assert Slope(measured=0.0, smaller=0.0, said=-8e-15, length=1e-14).fits  # rounding
