"""Heads and tokens in products, the axis of the softmax, and which weights meet which values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.laws import Law, layout, outputs, projections
from headwise.doctor.patient import NotChecked, Patient
from headwise.doctor.reading.placement import Layout
from tests.doctor.laws.specimens import Attention, Causal
from tests.doctor.laws.styles import Einsum, Masked, Plain, SharedByHeads, assert_at
from tests.doctor.laws.told import names, told

# By hand.


def test_what_a_softmax_runs_over() -> None:
    nothing = dict.fromkeys(Layout.__dataclass_fields__, 0.0)
    over = {
        "": {"key_position": 1.0},
        "the queries": {"query_position": 1.0},
        "queries and keys at once": {"query_position": 1.0, "key_position": 1.0},
        "the heads": {"query_feature": 1.0},
        "the batch": {"examples": 1.0},
        "the learned queries": {"repeated_keys": 1.0},
    }
    for words, changes in over.items():
        assert layout.runs_over(Layout(**{**nothing, **changes}), one_query=True) == words


def test_weights_of_no_value() -> None:
    given = torch.ones(1, 2, 2, 2, dtype=torch.bool).tril()
    own = torch.eye(2, dtype=torch.bool).expand_as(given)
    second = given & torch.tensor([False, True])[:, None, None]
    assert layout.idle_heads(given, second) == [0]
    assert layout.idle_heads(given, given) == layout.idle_heads(given, given & False) == []
    assert layout.only_diagonal(given, own)
    assert not layout.only_diagonal(given, given)
    assert not layout.only_diagonal(own, own)  # nobody sees another token


# The rows of a product.


class SplitsByAView(Plain):
    def split(self, x: Tensor) -> Tensor:
        return x.view(len(x), self.heads, x.shape[1], -1)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.matmul(q, k.mT) / 2


class HeadsForPositions(Plain):
    """No transpose: the products are over the heads of one position."""

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1)

    def merge(self, x: Tensor) -> Tensor:
        return x.flatten(2)


class SplitsWithTheBatchSecond(Plain):
    """As torch does for [N, B, M], on [B, N, M]."""

    def split(self, x: Tensor) -> Tensor:
        b, n, m = x.shape
        return x.contiguous().view(n, b * self.heads, m // self.heads).transpose(0, 1)

    def merge(self, x: Tensor) -> Tensor:
        bh, n, d = x.shape
        return x.transpose(0, 1).reshape(bh // self.heads, n, self.heads * d)


class SaysBatchFirst(nn.Module):
    """x: [batch, seq, width]."""

    def __init__(self, **options: bool) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(16, 4, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.mha(x, x, x, need_weights=False)[0]


class KeepsBatchFirst(SaysBatchFirst):
    """x: [batch, seq, width]."""

    def __init__(self) -> None:
        super().__init__(batch_first=True)


class SequenceFirst(nn.Module):
    """x: [T, B, M]. Returns the output, and the weights as [B, T, S]."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights = (torch.einsum("tbm,sbm->bts", self.q(x), self.k(x)) / 4).softmax(-1)
        return torch.einsum("bts,sbm->tbm", weights, self.v(x)), weights


def test_rows_of_several_tokens_heads_or_examples() -> None:
    (finding,) = told(layout, SplitsByAView)
    assert (finding.name, finding.severity) == ("head-split", "bug")
    assert "positions 0, 0, 0, 0, 1" in finding.evidence  # five rows of 16 are 20 rows of 4
    assert_at(finding, SplitsByAView, "torch.matmul(q, k.mT)")
    assert names(layout, HeadsForPositions) == [("head-split", "bug")]
    assert names(layout, SplitsWithTheBatchSecond) == [("batch-mixing", "bug")]


def test_a_batch_that_is_said_to_be_first() -> None:
    assert names(layout, SaysBatchFirst) == [("batch-mixing", "bug")]
    assert names(layout, KeepsBatchFirst) == names(layout, SequenceFirst) == []


# The axis of the softmax.


class OverQueries(Plain):
    def normalise(self, scores: Tensor) -> Tensor:
        return scores.softmax(dim=-2)


class OverHeads(Einsum):
    def normalise(self, scores: Tensor) -> Tensor:
        return torch.softmax(scores, dim=1)


class OverTheBatch(Einsum):
    def normalise(self, scores: Tensor) -> Tensor:
        return scores.softmax(0)


class OverAllPairs(Plain):
    def normalise(self, scores: Tensor) -> Tensor:
        return scores.flatten(2).softmax(-1).view_as(scores)


class OverQueriesByHand(Plain):
    def normalise(self, scores: Tensor) -> Tensor:
        e = torch.exp(scores - scores.max())
        return e / e.sum(dim=2, keepdim=True)


class LatentsShareKeys(nn.Module):
    """x: [B, N, 16] -> [B, 6, 16]"""

    mean = False

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(6, 16))
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(self.latents.expand(len(x), -1, -1)), self.k(x), self.v(x)
        q, k, v = (y.view(*y.shape[:2], 4, 4).transpose(1, 2) for y in (q, k, v))
        weights = (q @ k.mT / 2).softmax(-2)
        weights = weights / weights.sum(-1, keepdim=True) if self.mean else weights
        return (weights @ v).transpose(1, 2).flatten(2)


class Slots(LatentsShareKeys):
    """Slot attention: keys are shared out among the slots, and each slot takes a mean."""

    mean = True


class Compete(Plain):
    """The same with the tokens as slots."""

    def normalise(self, scores: Tensor) -> Tensor:
        weights = scores.softmax(-2)
        return weights / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize(
    ("module", "over", "axis"),
    [
        (OverQueries, "the queries", 2),
        (OverHeads, "the heads", 1),
        (OverTheBatch, "the batch", 0),
        (OverAllPairs, "queries and keys at once", 2),
        (OverQueriesByHand, "the queries", 2),
        (LatentsShareKeys, "the learned queries", 2),
    ],
)
def test_a_softmax_over_another_axis(module: type[nn.Module], over: str, axis: int) -> None:
    (finding,) = told(layout, module)
    assert (finding.name, finding.severity, finding.numbers["axis"]) == ("softmax-axis", "bug", axis)
    assert f"which is {over};" in finding.evidence
    assert finding.numbers["sum"] == pytest.approx(1, abs=1e-5)


class Step(nn.Module):
    """One step of a decoder with additive attention; nothing is said of shapes."""

    axis = 1

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.of_query, self.of_keys, self.score = nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 1)
        self.gru, self.out = nn.GRU(40, 24, batch_first=True), nn.Linear(24, 50)

    def forward(self, token: Tensor, hidden: Tensor, encoder_outputs: Tensor) -> tuple[Tensor, Tensor]:
        energy = self.score(torch.tanh(self.of_query(hidden.transpose(0, 1)) + self.of_keys(encoder_outputs)))
        context = energy.softmax(self.axis).mT @ encoder_outputs  # [B, 1, H] of [B, K, 1] and [B, K, H]
        out, hidden = self.gru(torch.cat((self.words(token), context), -1), hidden)
        return self.out(out), hidden


class OverOne(Step):
    """One step of a decoder."""

    axis = -1


class LeftOver(nn.Module):
    """Weights of one head over heads are computed, and never read, as in SAM 2."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 1, 16)).unbind(2)  # [B, N, 1, D]
        self.weights = (q / 4 @ k.mT).softmax(-1)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        y = (q @ k.mT / 4).softmax(-1) @ v
        return self.out(y.transpose(1, 2).flatten(2))


def test_a_softmax_over_one_number() -> None:
    (finding,) = told(layout, OverOne)
    assert (finding.name, finding.severity, finding.numbers["axis"]) == ("softmax-axis", "bug", -1)
    assert "every weight is 1" in finding.evidence
    assert names(layout, Step) == []
    assert "softmax-axis" not in {name for name, _ in names(layout, LeftOver)}


# Weights and values.


class SumsOverQueries(Plain):
    def normalise(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1).transpose(-2, -1)


class DropsTheWrongEnd(Plain):
    """A learned score per head, last in the softmax."""

    left = slice(1, None)

    def __init__(self) -> None:
        super().__init__()
        self.sinks = nn.Parameter(torch.randn(4, 1, 1))

    def normalise(self, scores: Tensor) -> Tensor:
        return torch.cat([scores, self.sinks.expand(*scores.shape[:3], 1)], -1).softmax(-1)[..., self.left]


class Sink(DropsTheWrongEnd):
    left = slice(-1)


class Diagonal(Einsum):
    """An einsum that repeats a letter."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return torch.einsum("bhii,bihd->bihd", weights, v)


class NumberByNumber(Einsum):
    """A sum of products in the place of a product of matrices."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return (weights[..., None] * v.transpose(1, 2)[:, :, None]).sum(3).transpose(1, 2)


class WithoutItself(Einsum):
    """What a token gives to itself is taken off again."""

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return super().mix(weights, v) - torch.einsum("bhii,bihd->bihd", weights, v)


class OneHeadsWeights(Plain):
    """All heads are given the weights of the first."""

    def normalise(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)[:, :1]


class InTwoParts(Attention):
    """Heads meet their values in two products."""

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        weights = self.normalise(self.fill(self.score(q, k), allowed))
        return self.out(self.merge(torch.cat([weights[:, :2] @ v[:, :2], weights[:, 2:] @ v[:, 2:]], 1)))


def test_weights_that_meet_other_values() -> None:
    assert names(layout, SumsOverQueries)[0][1] == "bug"
    (finding,) = told(layout, DropsTheWrongEnd)
    assert (finding.name, finding.numbers["offset"]) == ("weights-misaligned", -1)
    (finding,) = told(layout, Diagonal)
    assert (finding.name, finding.severity) == ("weights-misaligned", "bug")
    assert "no token reads another" in finding.evidence
    (finding,) = told(layout, OneHeadsWeights)
    assert (finding.name, finding.severity) == ("head-idle", "bug")
    assert "3 of 4 heads (1, 2, 3)" in finding.evidence


# Healthy.


class KeysTimesQueries(Plain):
    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        weights = (k @ q.mT / 2).softmax(-2)
        return self.out(self.merge((v.mT @ weights).mT))


class Grouped(nn.Module):
    """[B, G, H / G * Q, D]: the queries that share a key head lie one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = 4, 2
        self.q, self.out = nn.Linear(16, 16), nn.Linear(16, 16)
        self.k, self.v = nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        b, n, m = x.shape
        q = self.q(x).view(b, n, 4, 4).transpose(1, 2).reshape(b, 2, 2 * n, 4)
        k, v = (f(x).view(b, n, 2, 4).transpose(1, 2) for f in (self.k, self.v))
        return self.out(((q @ k.mT / 2).softmax(-1) @ v).view(b, 4, n, 4).transpose(1, 2).reshape(b, n, m))


class WithLearnedKeys(Plain):
    """Two keys and values of nobody before those of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.more = nn.Parameter(torch.randn(2, self.heads, 2, 4))

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        k, v = (torch.cat([m.expand(len(x), -1, -1, -1), y], dim=2) for m, y in zip(self.more, (k, v), strict=True))
        return self.out(self.merge((q @ k.mT / 2).softmax(-1) @ v))


class CutWithOthers(Causal):
    """Scores of other queries stand beside the own ones and are masked, as where windows are cut from chunks."""

    def normalise(self, scores: Tensor) -> Tensor:
        n = scores.shape[-1]
        return torch.cat((scores, scores.roll(1, -2) - 1e9), -1).softmax(-1)[..., :n]


@pytest.mark.parametrize(
    "module",
    [
        *(Plain, Masked, Einsum, SharedByHeads, KeysTimesQueries, Grouped, WithLearnedKeys, CutWithOthers, Slots),
        *(Compete, Sink, NumberByNumber, WithoutItself, InTwoParts),
    ],
)
def test_a_healthy_one(module: type[nn.Module]) -> None:
    assert names(layout, module) == []


class TalkingHeads(Plain):
    """Heads are mixed before the softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4, bias=False)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return self.mix((q @ k.mT / 2).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Convolved(nn.Module):
    """Keys of three positions each."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.out = nn.Linear(16, 16), nn.Linear(16, 16)
        self.k, self.v = nn.Conv1d(16, 16, 3, padding=1), nn.Conv1d(16, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        k, v = (f(x.transpose(1, 2)).transpose(1, 2) for f in (self.k, self.v))
        return self.out((self.q(x) @ k.mT / 4).softmax(-1) @ v)


@pytest.mark.parametrize("module", [TalkingHeads, Convolved])
def test_what_cannot_be_judged(module: type[nn.Module]) -> None:
    with pytest.raises(NotChecked):
        list(layout.check(Patient(module())))


@pytest.mark.parametrize("law", [layout, outputs, projections])
def test_torchs_own_layers(law: Law) -> None:
    for made in (
        nn.MultiheadAttention(16, 4, dropout=0.3, batch_first=True),
        nn.MultiheadAttention(16, 4, kdim=12, vdim=10),
        nn.TransformerEncoderLayer(16, 4, 32, batch_first=True),
        nn.TransformerDecoderLayer(16, 4, 32, batch_first=True),
    ):
        assert names(law, made) == []
