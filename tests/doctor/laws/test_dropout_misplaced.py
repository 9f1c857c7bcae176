"""Dropout before the softmax."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.patient import NotChecked
from tests.doctor.laws.specimens import Attention, found, one
from tests.doctor.laws.styles import Einsum, Plain, assert_at


class OnScores(Plain):
    def normalise(self, scores: Tensor) -> Tensor:
        dropped = self.dropout(scores)
        return dropped.softmax(-1)


class OnScoresByHand(Einsum):
    """A mask of its own making."""

    def scaled(self, scores: Tensor) -> Tensor:
        scores = super().scaled(scores)
        if self.training:
            scores = scores * (torch.rand_like(scores) > 0.1)
        return scores


class BeforeTheScale(Einsum):
    def scaled(self, scores: Tensor) -> Tensor:
        return functional.dropout(scores, 0.2, self.training) * self.head_dim**-0.5


@pytest.mark.parametrize(
    ("make", "module", "code"),
    [
        (lambda: OnScores(dropout=0.5), OnScores, "dropped = self.dropout(scores)"),
        (OnScoresByHand, OnScoresByHand, "torch.rand_like(scores) > 0.1"),
        (BeforeTheScale, BeforeTheScale, "functional.dropout(scores"),
    ],
)
def test_dropout_on_scores(make: object, module: type[nn.Module], code: str) -> None:
    torch.manual_seed(0)
    finding = one("dropout_misplaced", make())  # type: ignore[operator]
    assert (finding.name, finding.severity) == ("dropout-misplaced", "bug")
    assert "is applied to the scores, before the softmax" in finding.evidence
    assert_at(finding, module, code)


# Healthy: on the weights, the input, the queries, the output; or never on.


class OnTheOutput(Einsum):
    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return functional.dropout(super().mix(weights, v), 0.5, self.training)


class OnTheInput(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(functional.dropout(x, 0.5, self.training))


class Fused(Plain):
    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        p = 0.5 if self.training else 0.0
        return self.out(self.merge(functional.scaled_dot_product_attention(q, k, v, dropout_p=p)))


@pytest.mark.parametrize(
    "make",
    [lambda: Attention(dropout=0.5), OnTheOutput, OnTheInput, Fused, lambda: OnScores(dropout=0.0), Plain],
)
def test_a_healthy_one(make: object) -> None:
    torch.manual_seed(0)
    assert found("dropout_misplaced", make()) == []  # type: ignore[operator]


def test_where_no_attention_is_seen_nothing_is_said() -> None:
    with pytest.raises(NotChecked):
        found("dropout_misplaced", nn.Linear(8, 8))
