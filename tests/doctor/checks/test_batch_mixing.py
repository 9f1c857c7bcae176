"""Examples of a batch that influence one another."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotChecked
from tests.doctor.checks.specimens import Attention, found, one, seeded


class FoldsHeadsFirst(Attention):
    def merge(self, x: Tensor) -> Tensor:
        """Heads and batch change places, and nobody changes them back."""
        b, h, n, d = x.shape
        return x.transpose(0, 1).reshape(b, h, n, d).transpose(1, 2).flatten(2)


class CountsTheBatch(Attention):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k) * len(q)


class RepeatsTheMask(Attention):
    """mask: [B * H, Q, K] in the scores' order is b0 b0 b0 b0 b1 …; here it is b0 b1 b2 b0 …"""

    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        if allowed is None:
            return scores
        b, h, q, k = scores.shape
        folded = scores.reshape(b * h, q, k)
        repeated = allowed.expand(b, 1, q, k)[:, 0].repeat(h, 1, 1)
        return folded.masked_fill(~repeated, -1e9).reshape(b, h, q, k)


def test_heads_that_mix_with_the_batch() -> None:
    finding = one("batch_mixing", seeded(FoldsHeadsFirst))
    assert (finding.name, finding.severity) == ("batch-mixing", "bug")
    assert finding.numbers["rows"] == finding.numbers["of"] == 10  # two other examples of five rows
    assert finding.numbers["change"] > 0.1


def test_an_example_alone_that_gives_something_else() -> None:
    finding = one("batch_mixing", seeded(CountsTheBatch))
    assert (finding.name, finding.severity) == ("batch-mixing", "bug")
    assert "alone" in finding.evidence


def test_a_mask_in_the_wrong_order_of_heads() -> None:
    finding = one("batch_mixing", seeded(RepeatsTheMask))
    assert (finding.name, finding.severity) == ("mask-head-order", "bug")
    assert all(change > 0.01 for change in finding.numbers.values())
    assert set(finding.numbers) == {"example 0", "example 1", "example 2"}


def test_a_healthy_one() -> None:
    assert found("batch_mixing", seeded(Attention)) == []
    assert found("batch_mixing", torch.nn.MultiheadAttention(16, 4)) == []


class PositionsOfTheBatch(Attention):
    """Positions: one for every token; here one for every example."""

    dim = 0

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[self.dim], dtype=x.dtype)[:, None]
        return super().forward(x + (positions if self.dim else positions[:, None]))


class PositionsOfTheTokens(PositionsOfTheBatch):
    dim = 1


def test_positions_of_the_batch() -> None:
    finding = one("batch_mixing", seeded(PositionsOfTheBatch))
    assert (finding.name, finding.severity) == ("batch-mixing", "bug")
    assert "three outputs" in finding.evidence
    assert found("batch_mixing", seeded(PositionsOfTheTokens)) == []


class TiedRows(nn.Module):
    """x: (rows, cols, batch, dim). One map for all rows."""

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.einsum("rind,rjnd->nij", self.q(x), self.k(x)) / (x.shape[0] * x.shape[-1]) ** 0.5
        return torch.einsum("nij,rjnd->rind", scores.softmax(-1), self.v(x))


def test_maps_whose_batch_is_said_to_be_another_axis() -> None:
    with pytest.raises(NotChecked, match="not the first axis"):
        found("batch_mixing", seeded(TiedRows))


class MixesItsLogits(Attention):
    """What comes back beside the output is a softmax over the batch."""

    dim = 0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out = super().forward(x)
        return out, out.mean(1)[:, :6].softmax(self.dim)


class HasLogits(MixesItsLogits):
    dim = -1


def test_examples_that_mix_beside_the_output() -> None:
    finding = one("batch_mixing", seeded(MixesItsLogits))
    assert (finding.name, finding.severity) == ("batch-mixing", "bug")
    assert "what else is returned for examples 0 and 2 changed" in finding.evidence
    assert found("batch_mixing", seeded(HasLogits)) == []
