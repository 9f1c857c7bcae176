"""Dropout before the softmax."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.patient import NotChecked
from tests.doctor.laws.specimens import Attention, altered, found, one
from tests.doctor.laws.styles import Einsum, Plain


def _on_scores(self: Any, scores: Tensor) -> Tensor:
    return functional.dropout(scores, 0.2, self.training) * self.head_dim**-0.5


def _on_scores_by_hand(self: Any, scores: Tensor) -> Tensor:
    kept = torch.rand_like(scores) > 0.1 if self.training else 1
    return scores * kept * self.head_dim**-0.5


@pytest.mark.parametrize(
    ("scaled", "code"), [(_on_scores, "functional.dropout(scores"), (_on_scores_by_hand, "return scores * kept")]
)
def test_dropout_on_scores(scaled: Any, code: str) -> None:
    finding = one("dropout_misplaced", altered(Einsum, scaled=scaled))
    assert (finding.name, finding.severity) == ("dropout-misplaced", "bug")
    assert "is applied to the scores, before the softmax" in finding.evidence
    assert code in finding.where.code


def _of_input(self: Any, x: Tensor) -> Tensor:
    x = functional.dropout(x, 0.5, self.training)
    return self.attend(x, x, None)


def _fused(self: Any, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
    q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
    p = 0.5 if self.training else 0.0
    return self.out(self.merge(functional.scaled_dot_product_attention(q, k, v, dropout_p=p)))


@pytest.mark.parametrize(
    "module", [Attention(dropout=0.5), altered(Plain, forward=_of_input), altered(Plain, attend=_fused)]
)
def test_a_healthy_one(module: nn.Module) -> None:
    assert found("dropout_misplaced", module) == []


def test_where_no_attention_is_seen_nothing_is_said() -> None:
    with pytest.raises(NotChecked):
        found("dropout_misplaced", nn.Linear(8, 8))
