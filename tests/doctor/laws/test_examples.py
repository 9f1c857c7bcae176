"""Examples of a batch that influence one another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotChecked
from tests.doctor.laws.specimens import Attention, altered, found, one, seeded

LAW = "examples"


def _merged_heads_first(self: Any, x: Tensor) -> Tensor:
    """Heads and batch change places, and nobody changes them back."""
    return x.transpose(0, 1).reshape(x.shape).transpose(1, 2).flatten(2)


def _with_positions(axis: int) -> Any:
    """One for every token, or one for every example."""

    def forward(self: Any, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[axis], dtype=x.dtype)[:, None]
        x = x + (positions if axis else positions[:, None])
        return self.attend(x, x, None)

    return forward


def _with_logits(axis: int) -> Any:
    """What comes back beside the output is a softmax, here over the batch or the features."""

    def forward(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        out = self.attend(x, x, None)
        return out, out.mean(1)[:, :6].softmax(axis)

    return forward


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        ({"merge": _merged_heads_first}, "10 of the 10 rows of examples 0 and 2 changed"),
        ({"forward": _with_logits(0)}, "what else is returned for examples 0 and 2 changed"),
        ({"score": lambda self, q, k: q @ k.mT * len(q)}, "example 2 alone gives another output"),
        ({"forward": _with_positions(0)}, "example 2 alone gives another output"),
    ],
)
def test_examples_that_meet(methods: dict[str, Any], said: str) -> None:
    finding = one(LAW, altered(**methods))
    assert (finding.name, finding.severity) == ("batch-mixing", "bug")
    assert said in finding.evidence
    assert finding.numbers["change"] > 1e-3


@pytest.mark.parametrize(
    "module",
    [
        *(seeded(Attention), altered(forward=_with_positions(1)), altered(forward=_with_logits(-1))),
        nn.MultiheadAttention(16, 4),
    ],
)
def test_examples_that_stay_apart(module: nn.Module) -> None:
    assert found(LAW, module) == []


def test_a_mask_in_the_wrong_order_of_heads() -> None:
    """[B * H, Q, K] in the scores' order is b0 b0 b0 b0 b1 …; here it is b0 b1 b2 b0 …"""

    def fill(self: Any, scores: Tensor, allowed: Tensor | None) -> Tensor:
        if allowed is None:
            return scores
        repeated = allowed.expand(-1, -1, *scores.shape[2:])[:, 0].repeat(scores.shape[1], 1, 1)
        return scores.flatten(0, 1).masked_fill(~repeated, -1e9).reshape(scores.shape)

    finding = one(LAW, altered(fill=fill))
    assert (finding.name, finding.severity) == ("mask-head-order", "bug")
    assert all(change > 0.01 for change in finding.numbers.values())
    assert set(finding.numbers) == {"example_0", "example_1", "example_2"}


# What is not proved.


class TiedRows(nn.Module):
    """One map for all rows; the batch is the third axis."""

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.einsum("rind,rjnd->nij", self.q(x), self.k(x)) / (x.shape[0] * x.shape[-1]) ** 0.5
        return torch.einsum("nij,rjnd->rind", scores.softmax(-1), self.v(x))


def test_what_may_be_another_axis() -> None:
    with pytest.raises(NotChecked, match="the tokens of one do not"):
        found(LAW, TiedRows)
