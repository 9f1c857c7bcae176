"""Heads and tokens in products, the axis of the softmax, and which weights meet which values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.laws import layout
from headwise.doctor.patient import NotChecked, Patient
from tests.doctor.laws.specimens import Attention, Causal, found, one, seeded
from tests.doctor.laws.styles import Einsum, Latents, Masked, Plain, SharedByHeads, assert_at

torch.manual_seed(0)  # for the modules that are made here


class SplitsByAView(Plain):
    def split(self, x: Tensor) -> Tensor:
        return x.view(len(x), self.heads, x.shape[1], -1)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.matmul(q, k.mT) / 2


def split_with_the_batch_second(x: Tensor) -> Tensor:
    """As torch does for [N, B, M], on [B, N, M]."""
    b, n, m = x.shape
    return x.contiguous().view(n, b * 4, m // 4).transpose(0, 1)


def test_rows_of_several_tokens_heads_or_examples() -> None:
    finding = one("layout", SplitsByAView)
    assert (finding.name, finding.severity) == ("head-split", "bug")
    assert "positions 0, 0, 0, 0, 1" in finding.evidence  # five rows of 16 are 20 rows of 4
    assert_at(finding, SplitsByAView, "torch.matmul(q, k.mT)")
    of_positions = Plain(split=lambda x: x.unflatten(-1, (4, 4)), merge=lambda x: x.flatten(2))
    assert one("layout", of_positions).name == "head-split"
    merge = lambda x: x.transpose(0, 1).reshape(x.shape[1], -1, 16).transpose(0, 1)  # noqa: E731
    assert one("layout", Plain(split=split_with_the_batch_second, merge=merge)).name == "batch-mixing"


class SaysBatchFirst(nn.Module):
    """x: [batch, seq, width]."""

    def __init__(self, **options: bool) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(16, 4, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.mha(x, x, x, need_weights=False)[0]


class SequenceFirst(nn.Module):
    """x: [T, B, M]. Returns the output, and the weights as [B, T, S]."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights = (torch.einsum("tbm,sbm->bts", self.q(x), self.k(x)) / 4).softmax(-1)
        return torch.einsum("bts,sbm->tbm", weights, self.v(x)), weights


def test_a_batch_that_is_said_to_be_first() -> None:
    finding = one("layout", SaysBatchFirst)
    assert (finding.name, finding.severity) == ("batch-mixing", "bug")
    assert found("layout", SaysBatchFirst(batch_first=True)) == found("layout", SequenceFirst) == []


# The axis of the softmax.


def of_slots(scores: Tensor) -> Tensor:
    """Slot attention: keys are shared out among the slots, and each slot takes a mean."""
    weights = scores.softmax(-2)
    return weights / weights.sum(-1, keepdim=True)


OVER = [
    (Plain(normalise=lambda scores: scores.softmax(dim=-2)), "the queries", 2),
    (Plain(normalise=lambda scores: scores.flatten(2).softmax(-1).view_as(scores)), "queries and keys at once", 2),
    (Einsum(normalise=lambda scores: torch.softmax(scores, dim=1)), "the heads", 1),
    (Einsum(normalise=lambda scores: scores.softmax(0)), "the batch", 0),
    (Latents(normalise=lambda scores: scores.softmax(-2)), "the learned queries", 2),
]


@pytest.mark.parametrize(("module", "over", "axis"), OVER)
def test_a_softmax_over_another_axis(module: nn.Module, over: str, axis: int) -> None:
    finding = one("layout", module)
    assert (finding.name, finding.severity, finding.numbers["axis"]) == ("softmax-axis", "bug", axis)
    assert f"which is {over};" in finding.evidence


class Pools(nn.Module):
    """One vector of a sequence, by a score of each token."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis, self.score = axis, nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.score(x).softmax(self.axis).mT @ x  # [B, 1, M] of [B, K, 1] and [B, K, M]


def test_a_softmax_over_one_number() -> None:
    finding = next(layout.check(Patient(seeded(Pools, -1))))
    assert (finding.name, finding.severity, finding.numbers["axis"]) == ("softmax-axis", "bug", -1)
    assert "every weight is 1" in finding.evidence
    with pytest.raises(NotChecked):
        found("layout", Pools(1))


# Weights and values.


class Sink(Plain):
    """A learned score per head, last in the softmax."""

    left = slice(-1)

    def __init__(self) -> None:
        super().__init__()
        self.sinks = nn.Parameter(torch.randn(4, 1, 1))

    def normalise(self, scores: Tensor) -> Tensor:
        return torch.cat([scores, self.sinks.expand(*scores.shape[:3], 1)], -1).softmax(-1)[..., self.left]


class DropsTheWrongEnd(Sink):
    left = slice(1, None)


def test_weights_that_meet_other_values() -> None:
    transposed = one("layout", Plain(normalise=lambda scores: scores.softmax(-1).transpose(-2, -1)))
    assert (transposed.name, transposed.severity) == ("weights-transposed", "bug")
    finding = one("layout", DropsTheWrongEnd)
    assert (finding.name, finding.severity, finding.numbers["offset"]) == ("weights-misaligned", "bug", -1)
    finding = one("layout", Einsum(mix=lambda weights, v: torch.einsum("bhii,bihd->bihd", weights, v)))
    assert (finding.name, finding.severity) == ("weights-misaligned", "bug")
    assert "no token reads another" in finding.evidence
    finding = one("layout", Plain(normalise=lambda scores: scores.softmax(-1)[:, :1]))
    assert (finding.name, finding.severity) == ("head-idle", "bug")
    assert "3 of 4 heads (1, 2, 3)" in finding.evidence


# Healthy, or not to be judged.


def number_by_number(weights: Tensor, v: Tensor) -> Tensor:
    """A sum of products in the place of a product of matrices."""
    return (weights[..., None] * v.transpose(1, 2)[:, :, None]).sum(3).transpose(1, 2)


def of_projections(self: Attention, x: Tensor) -> tuple[Tensor, ...]:
    return tuple(self.split(w(x)) for w in (self.q, self.k, self.v))


class InTwoParts(Attention):
    """Heads meet their values in two products."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = of_projections(self, x)
        weights = self.score(q, k).softmax(-1)
        return self.out(self.merge(torch.cat([weights[:, :2] @ v[:, :2], weights[:, 2:] @ v[:, 2:]], 1)))


class CutWithOthers(Causal):
    """Scores of other queries stand beside the own ones and are masked, as where windows are cut from chunks."""

    def normalise(self, scores: Tensor) -> Tensor:
        n = scores.shape[-1]
        return torch.cat((scores, scores.roll(1, -2) - 1e9), -1).softmax(-1)[..., :n]


@pytest.mark.parametrize(
    "module",
    [
        *(Plain, Masked, Einsum, SharedByHeads),
        *(CutWithOthers, Latents(normalise=of_slots), Sink, InTwoParts, Einsum(mix=number_by_number)),
    ],
)
def test_a_healthy_one(module: type[nn.Module]) -> None:
    assert found("layout", module) == []


class TalkingHeads(Plain):
    """Heads are mixed before the softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4, bias=False)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return self.mix((q @ k.mT / 2).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def test_what_cannot_be_judged() -> None:
    with pytest.raises(NotChecked):
        found("layout", TalkingHeads)
