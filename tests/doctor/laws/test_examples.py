"""Examples of a batch that influence one another."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.laws.examples import batch_axis, others_change
from headwise.doctor.patient import NotChecked
from tests.doctor.laws.specimens import Attention, found, one, seeded

LAW = "examples"


def test_what_other_examples_change_by() -> None:
    before = torch.zeros(3, 1, 2) + torch.tensor([3.0, 4.0])
    after = before.clone()
    after[1] += 100
    assert others_change(before, after).tolist() == [[0.0], [0.0]]
    after[2, 0, 0] += 7.0
    assert others_change(before, after)[:, 0].tolist() == pytest.approx([0.0, 7 / 12.5**0.5])  # rms of 3 and 4
    assert others_change(before.mT, after.mT, axis=0).shape == (2, 2)


def test_which_axis_is_that_of_the_batch() -> None:
    assert batch_axis(torch.zeros(3, 5, 2), 3) == 0
    assert batch_axis(torch.zeros(2, 3, 5), 3) == 1  # states of layers
    assert batch_axis(torch.zeros(3, 3, 5), 3) is None
    assert batch_axis(torch.zeros(3), 3) is None


class FoldsHeadsFirst(Attention):
    def merge(self, x: Tensor) -> Tensor:
        """Heads and batch change places, and nobody changes them back."""
        b, h, n, d = x.shape
        return x.transpose(0, 1).reshape(b, h, n, d).transpose(1, 2).flatten(2)


class CountsTheBatch(Attention):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k) * len(q)


class PositionsOfTheBatch(Attention):
    """Positions: one for every token; here one for every example."""

    dim = 0

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[self.dim], dtype=x.dtype)[:, None]
        return super().forward(x + (positions if self.dim else positions[:, None]))


class PositionsOfTheTokens(PositionsOfTheBatch):
    dim = 1


class MixesItsLogits(Attention):
    """What comes back beside the output is a softmax over the batch."""

    dim = 0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out = super().forward(x)
        return out, out.mean(1)[:, :6].softmax(self.dim)


class HasLogits(MixesItsLogits):
    dim = -1


class SharesAnIndex(Attention):
    """A number that is averaged over the batch, and rounded."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.roll(int(x.abs().mean() * 2), 1))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (FoldsHeadsFirst, "10 of the 10 rows of examples 0 and 2 changed"),
        (SharesAnIndex, "rows of examples 0 and 2 changed"),
        (MixesItsLogits, "what else is returned for examples 0 and 2 changed"),
        (CountsTheBatch, "example 0 alone gives another output"),
        (PositionsOfTheBatch, "has three outputs"),
    ],
)
def test_examples_that_meet(kind: type[nn.Module], said: str) -> None:
    finding = one(LAW, seeded(kind))
    assert (finding.name, finding.severity) == ("batch-mixing", "bug")
    assert said in finding.evidence
    assert finding.numbers["change"] > 1e-3


@pytest.mark.parametrize("module", [Attention, PositionsOfTheTokens, HasLogits, lambda: nn.MultiheadAttention(16, 4)])
def test_examples_that_stay_apart(module: type[nn.Module]) -> None:
    assert found(LAW, seeded(module)) == []


class RepeatsTheMask(Attention):
    """mask: [B * H, Q, K] in the scores' order is b0 b0 b0 b0 b1 …; here it is b0 b1 b2 b0 …"""

    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        if allowed is None:
            return scores
        b, h, q, k = scores.shape
        folded = scores.reshape(b * h, q, k)
        repeated = allowed.expand(b, 1, q, k)[:, 0].repeat(h, 1, 1)
        return folded.masked_fill(~repeated, -1e9).reshape(b, h, q, k)


def test_a_mask_in_the_wrong_order_of_heads() -> None:
    finding = one(LAW, seeded(RepeatsTheMask))
    assert (finding.name, finding.severity) == ("mask-head-order", "bug")
    assert all(change > 0.01 for change in finding.numbers.values())
    assert set(finding.numbers) == {"example 0", "example 1", "example 2"}


# What is not proved.


class TiedRows(nn.Module):
    """One map for all rows; the batch is the third axis."""

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.einsum("rind,rjnd->nij", self.q(x), self.k(x)) / (x.shape[0] * x.shape[-1]) ** 0.5
        return torch.einsum("nij,rjnd->rind", scores.softmax(-1), self.v(x))


class ThreeRows(FoldsHeadsFirst):
    """Its first axis has a fixed size."""

    def forward(self, x: Tensor) -> Tensor:
        assert len(x) == 3
        return super().forward(x)


class Noisy(Attention):
    """Random numbers that no seed repeats."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.randn(x.shape, generator=torch.Generator().manual_seed(torch.seed() % 99)))


@pytest.mark.parametrize(
    ("kind", "why"),
    [(TiedRows, "the tokens of one do not"), (ThreeRows, "does not take 4 examples"), (Noisy, "differ")],
)
def test_what_may_be_another_axis(kind: type[nn.Module], why: str) -> None:
    with pytest.raises(NotChecked, match=why):
        found(LAW, seeded(kind))
