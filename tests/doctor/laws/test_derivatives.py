"""Gradients of the inputs, and whether they are right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.doctor.laws.specimens import Attention, Cross, altered, found, one, seeded

LAW = "derivatives"


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


def _straight_through(self: Any, scores: Tensor) -> Tensor:
    """One key a query, with the gradient of all."""
    soft = scores.softmax(-1)
    return functional.one_hot(soft.argmax(-1), soft.shape[-1]).to(soft) + soft - soft.detach()


class Series(Attention):
    """The mean and the deviation of each series are taken off, and put back."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True).detach()
        deviation = (x - mean).std(1, keepdim=True).detach() + 1e-5
        x = (x - mean) / deviation
        return (self.attend(x, x, None) + self.more(x)) * deviation + mean

    def more(self, x: Tensor) -> Tensor | float:
        return 0.0


@pytest.mark.parametrize(
    ("module", "name", "severity", "said"),
    [
        (
            altered(Cross, forward=lambda self, x, memory: self.attend(x, memory.detach(), None)),
            *("gradient-blocked", "bug", "the key gets no gradient"),
        ),
        (altered(normalise=lambda self, x: x.softmax(-1).detach()), "gradient-wrong", "bug", "along a random"),
        (altered(normalise=lambda self, x: Softmax.apply(x)), "gradient-wrong", "bug", "along a random"),
        (altered(normalise=_straight_through), "gradient-wrong", "risk", "straight-through"),
        (  # the root of 0 has no gradient
            altered(score=lambda self, q, k: q @ k.mT + 0 * (k - k).abs().sqrt().sum()),
            *("gradient-wrong", "bug", "is NaN or infinite"),
        ),
        (altered(Series, more=lambda self, x: x.square().detach() * x), "gradient-wrong", "bug", "along a random"),
    ],
)
def test_gradients_that_are_missing_or_wrong(module: nn.Module, name: str, severity: str, said: str) -> None:
    finding = one(LAW, module)
    assert (finding.name, finding.severity) == (name, severity)
    assert said in finding.evidence


@pytest.mark.parametrize("kind", [Attention, Cross, Series])
def test_a_healthy_one(kind: type[nn.Module]) -> None:
    assert found(LAW, seeded(kind)) == []
