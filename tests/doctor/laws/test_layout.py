"""Heads and tokens in products, the axis of the softmax, and which weights meet which values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.laws import layout
from headwise.doctor.patient import NotChecked, Patient
from tests.doctor.laws.specimens import Causal, found, one, seeded
from tests.doctor.laws.styles import Einsum, Latents, Plain, SharedByHeads

torch.manual_seed(0)  # for the modules that are made here


def split_with_the_batch_second(x: Tensor) -> Tensor:
    """As torch does for [N, B, M], on [B, N, M]."""
    b, n, m = x.shape
    return x.contiguous().view(n, b * 4, m // 4).transpose(0, 1)


def test_rows_of_several_tokens_heads_or_examples() -> None:
    finding = one("layout", Plain(split=lambda x: x.view(len(x), 4, x.shape[1], -1)))
    assert (finding.name, finding.severity) == ("head-split", "bug")
    assert "positions 0, 0, 0, 0, 1" in finding.evidence  # five rows of 16 are 20 rows of 4
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


@pytest.mark.parametrize(
    ("module", "over", "axis"),
    [
        (Plain(normalise=lambda scores: scores.softmax(dim=-2)), "the queries", 2),
        (Plain(normalise=lambda scores: scores.flatten(2).softmax(-1).view_as(scores)), "queries and keys at once", 2),
        (Einsum(normalise=lambda scores: torch.softmax(scores, dim=1)), "the heads", 1),
        (Einsum(normalise=lambda scores: scores.softmax(0)), "the batch", 0),
        (Latents(normalise=lambda scores: scores.softmax(-2)), "the learned queries", 2),
    ],
)
def test_a_softmax_over_another_axis(module: nn.Module, over: str, axis: int) -> None:
    finding = one("layout", module)
    assert (finding.name, finding.severity) == ("softmax-axis", "bug")
    assert f"is taken over axis {axis} of scores" in finding.evidence
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

SINK = torch.randn(4, 1, 1)


def with_a_sink(left: slice) -> nn.Module:
    """A score per head, last in the softmax; `left`: which weights are kept."""

    def normalise(scores: Tensor) -> Tensor:
        return torch.cat([scores, SINK.expand(*scores.shape[:3], 1)], -1).softmax(-1)[..., left]

    return Plain(normalise=normalise)


def test_weights_that_meet_other_values() -> None:
    transposed = one("layout", Plain(normalise=lambda scores: scores.softmax(-1).transpose(-2, -1)))
    assert (transposed.name, transposed.severity) == ("weights-transposed", "bug")
    finding = one("layout", with_a_sink(slice(1, None)))
    assert (finding.name, finding.severity) == ("weights-misaligned", "bug")
    assert finding.evidence.endswith("with the value of the token 1 position earlier")
    finding = one("layout", Einsum(mix=lambda weights, v: torch.einsum("bhii,bihd->bihd", weights, v)))
    assert (finding.name, finding.severity) == ("weights-misaligned", "bug")
    assert "no token reads another" in finding.evidence
    first = (torch.arange(4) == 0)[:, None]
    for idle in (
        Plain(normalise=lambda scores: scores.softmax(-1)[:, :1]),
        Einsum(mix=lambda weights, v: torch.einsum("bhij,bjhd->bihd", weights, v) * first),
    ):
        finding = one("layout", idle)
        assert (finding.name, finding.severity) == ("head-idle", "bug")
        assert "3 of 4 heads (1, 2, 3)" in finding.evidence


# Healthy, or not to be judged.


def number_by_number(weights: Tensor, v: Tensor) -> Tensor:
    """A sum of products in the place of a product of matrices."""
    return (weights[..., None] * v.transpose(1, 2)[:, :, None]).sum(3).transpose(1, 2)


def in_two_products(weights: Tensor, v: Tensor) -> Tensor:
    halves = (slice(2), slice(2, None))
    return torch.cat([torch.einsum("bhqk,bkhd->bqhd", weights[:, x], v[:, :, x]) for x in halves], 2)


def of_slots(scores: Tensor) -> Tensor:
    """Slot attention: keys are shared out among the slots, and each slot takes a mean."""
    weights = scores.softmax(-2)
    return weights / weights.sum(-1, keepdim=True)


def beside_others(scores: Tensor) -> Tensor:
    """Scores of other queries stand beside the own ones and are masked, as where windows are cut from chunks."""
    return torch.cat((scores, scores.roll(1, -2) - 1e9), -1).softmax(-1)[..., : scores.shape[-1]]


@pytest.mark.parametrize(
    "module",
    [
        *(Plain, Einsum, SharedByHeads, with_a_sink(slice(-1)), Latents(normalise=of_slots)),
        *(Causal(normalise=beside_others), Einsum(mix=in_two_products), Einsum(mix=number_by_number)),
    ],
)
def test_a_healthy_one(module: type[nn.Module]) -> None:
    assert found("layout", module) == []


def test_heads_that_are_mixed_before_the_softmax_are_not_judged() -> None:
    mix = torch.randn(4, 4)
    with pytest.raises(NotChecked):
        found("layout", Plain(score=lambda q, k: torch.einsum("bhqk,hi->biqk", q @ k.mT / 2, mix)))
