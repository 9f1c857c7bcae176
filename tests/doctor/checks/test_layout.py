"""Heads, positions and examples mixed up before the products, and softmaxes over another axis than the keys."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotChecked
from tests.doctor.checks.specimens import Causal, found, one, seeded
from tests.doctor.checks.styles import Einsum, Masked, Plain, SharedByHeads, assert_at

# Heads and positions.


class SplitsByAView(Plain):
    def split(self, x: Tensor) -> Tensor:
        return x.view(len(x), self.heads, x.shape[1], -1)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.matmul(q, k.mT) / 2


class SplitsValuesByAReshape(Einsum):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        b, n, m = x.shape
        q, k = (y.view(b, n, 4, -1).transpose(1, 2) for y in (q, k))
        return self.proj(((q @ k.mT / 2).softmax(-1) @ v.reshape(b, 4, n, -1)).transpose(1, 2).reshape(b, n, m))


class SplitsWithTheBatchSecond(Plain):
    """As torch does for [N, B, M], on [B, N, M]."""

    def split(self, x: Tensor) -> Tensor:
        b, n, m = x.shape
        return x.contiguous().view(n, b * self.heads, m // self.heads).transpose(0, 1)

    def merge(self, x: Tensor) -> Tensor:
        bh, n, d = x.shape
        return x.transpose(0, 1).reshape(bh // self.heads, n, self.heads * d)


def test_heads_split_by_a_bare_view() -> None:
    finding = one("layout", seeded(SplitsByAView))
    assert (finding.name, finding.severity) == ("head-split", "bug")
    assert "queries and keys and values" in finding.evidence
    assert "positions 0, 0, 0, 0, 1" in finding.evidence  # five rows of 16 are 20 rows of 4
    assert_at(finding, SplitsByAView, "torch.matmul(q, k.mT)")


def test_only_the_values_split_by_a_reshape() -> None:
    finding = one("layout", seeded(SplitsValuesByAReshape))
    assert (finding.name, finding.severity) == ("head-split", "bug")
    assert "holds values of several heads" in finding.evidence


def test_batch_and_positions_that_change_places() -> None:
    finding = one("layout", seeded(SplitsWithTheBatchSecond))
    assert (finding.name, finding.severity) == ("batch-mixing", "bug")
    assert "come from several examples" in finding.evidence


class SaysBatchFirst(nn.Module):
    """x: [batch, seq, width]."""

    def __init__(self) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.mha(x, x, x, need_weights=False)[0]


def test_a_batch_that_is_taken_for_the_sequence() -> None:
    finding = one("layout", seeded(SaysBatchFirst))
    assert (finding.name, finding.severity) == ("batch-mixing", "bug")
    assert "'[batch, seq,'" in finding.evidence
    assert_at(finding, SaysBatchFirst, "class SaysBatchFirst")


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


class HeadsForPositions(Plain):
    """No transpose: the products are over the heads of one position."""

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1)

    def merge(self, x: Tensor) -> Tensor:
        return x.flatten(2)


@pytest.mark.parametrize(
    ("module", "over", "axis", "code"),
    [
        (OverQueries, "the queries", 2, "scores.softmax(dim=-2)"),
        (OverHeads, "the heads", 1, "torch.softmax(scores, dim=1)"),
        (OverTheBatch, "the batch", 0, "scores.softmax(0)"),
        (OverAllPairs, "queries and keys at once", 2, "scores.flatten(2).softmax(-1)"),
        (OverQueriesByHand, "the queries", 2, "e / e.sum(dim=2, keepdim=True)"),
    ],
)
def test_a_softmax_over_another_axis(module: type[nn.Module], over: str, axis: int, code: str) -> None:
    finding = one("layout", seeded(module))
    assert (finding.name, finding.severity) == ("softmax-axis", "bug")
    assert f"axis {axis} of scores" in finding.evidence
    assert f"which is {over};" in finding.evidence
    assert finding.numbers["axis"] == axis
    assert finding.numbers["sum"] == pytest.approx(1, abs=1e-5)
    if module is not OverQueriesByHand:
        assert_at(finding, module, code)


def test_heads_that_attend_to_heads() -> None:
    finding = one("layout", seeded(HeadsForPositions))
    assert (finding.name, finding.severity) == ("head-split", "bug")
    assert "positions 0, 0, 0, 0;" in finding.evidence


# Weights that meet the values transposed.


class SumsOverQueries(Einsum):
    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return torch.einsum("bhqk,bqhd->bkhd", weights, v)


class SumsOverQueriesInPlainSight(Plain):
    def normalise(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1).transpose(-2, -1)


@pytest.mark.parametrize("module", [SumsOverQueries, SumsOverQueriesInPlainSight])
def test_weights_that_meet_the_values_transposed(module: type[nn.Module]) -> None:
    finding = one("layout", seeded(module))
    assert finding.severity == "bug"
    assert finding.name in ("weights-transposed", "softmax-axis")  # queries and keys by name say which of the two
    assert finding.name == "weights-transposed" or module is SumsOverQueries


# Healthy.


class KeysTimesQueries(Plain):
    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        weights = (k @ q.mT / 2).softmax(-2)
        return self.out(self.merge((v.mT @ weights).mT))


class SequenceFirst(Einsum):
    """x: [seq, batch, width]."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(self.qkv(x))
        weights = (torch.einsum("qbhd,kbhd->bhqk", q, k) / 2).softmax(-1)
        return self.proj(torch.einsum("bhqk,kbhd->qbhd", weights, v).flatten(2))


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(Head() for _ in range(3))
        self.proj = nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(torch.cat([head(x) for head in self.heads], dim=-1))


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(12, 4, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.query(x) @ self.key(x).transpose(-2, -1) * 4**-0.5
        return weights.softmax(-1) @ self.value(x)


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


class Shaw(Plain):
    """A learned vector for every distance meets the queries too."""

    def __init__(self) -> None:
        super().__init__()
        self.distances = nn.Embedding(9, 4)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        at = torch.arange(q.shape[2])
        vectors = self.distances((at - at[:, None]).clamp(-4, 4) + 4)
        return (q @ k.mT + torch.einsum("bhqd,qkd->bhqk", q, vectors)) / 2


@pytest.mark.parametrize("module", [WithLearnedKeys, Shaw])
def test_what_is_learned_beside_the_keys_is_no_mistake(module: type[nn.Module]) -> None:
    assert found("layout", seeded(module)) == []


class Bahdanau(Plain):
    """Scores of a layer on what a query and a key add up to."""

    def __init__(self) -> None:
        super().__init__()
        self.score_layer = nn.Linear(16, 1)

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        both = torch.tanh(self.q(x)[:, :, None] + self.k(memory)[:, None])
        return self.out(self.score_layer(both)[..., 0].softmax(-1) @ self.v(memory))


class TalkingHeads(Plain):
    """Heads are mixed before the softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4, bias=False)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return self.mix((q @ k.mT / 2).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


@pytest.mark.parametrize("module", [Bahdanau, TalkingHeads])
def test_scores_that_no_product_made_are_not_judged(module: type[nn.Module]) -> None:
    with pytest.raises(NotChecked):
        found("layout", seeded(module))


@pytest.mark.parametrize(
    "module", [Plain, Masked, Einsum, KeysTimesQueries, SequenceFirst, Heads, Grouped, SharedByHeads]
)
def test_a_healthy_one(module: type[nn.Module]) -> None:
    assert found("layout", seeded(module)) == []


class Convolved(nn.Module):
    """Keys of three positions each."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.out = nn.Linear(16, 16), nn.Linear(16, 16)
        self.k, self.v = nn.Conv1d(16, 16, 3, padding=1), nn.Conv1d(16, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        k, v = (f(x.transpose(1, 2)).transpose(1, 2) for f in (self.k, self.v))
        return self.out((self.q(x) @ k.mT / 4).softmax(-1) @ v)


def test_keys_of_several_positions_cannot_be_judged() -> None:
    with pytest.raises(NotChecked, match="computed from several tokens"):
        found("layout", seeded(Convolved))


class DocumentsBatchFirst(nn.Module):
    """x: (batch_size, tokens, width)"""

    def __init__(self, **options: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]


class KeepsBatchFirst(DocumentsBatchFirst):
    """x: (batch_size, tokens, width)"""

    def __init__(self) -> None:
        super().__init__(batch_first=True)


class DocumentsPatches(DocumentsBatchFirst):
    """Input and output: (batch, num_patches + 1, dim)"""


@pytest.mark.parametrize("module", [DocumentsBatchFirst, DocumentsPatches])
def test_a_layout_that_the_docstring_states(module: type[nn.Module]) -> None:
    finding = one("layout", seeded(module))
    assert (finding.name, finding.severity) == ("batch-mixing", "bug")
    assert found("layout", seeded(KeepsBatchFirst)) == []


class SequenceFirst(nn.Module):
    """x: [T, B, M]. Returns the output, and the weights as [B, T, S]."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights = (torch.einsum("tbm,sbm->bts", self.q(x), self.k(x)) / 4).softmax(-1)
        return torch.einsum("bts,sbm->tbm", weights, self.v(x)), weights


class SaidBatchFirst(SequenceFirst):
    """x: [B, T, M]."""


def test_what_is_said_of_the_weights_is_not_said_of_the_inputs() -> None:
    assert "batch-mixing" not in [finding.name for finding in found("layout", seeded(SequenceFirst))]
    assert "batch-mixing" in [finding.name for finding in found("layout", seeded(SaidBatchFirst))]


class LearnedLatents(nn.Module):
    """x: [B, N, 16] -> [B, 6, 16]"""

    axis, shared = -1, False

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(6, 16))
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(self.latents.expand(len(x), -1, -1)), self.k(x), self.v(x)
        q, k, v = (y.view(*y.shape[:2], 4, 4).transpose(1, 2) for y in (q, k, v))
        weights = (q @ k.mT / 2).softmax(self.axis)
        if self.shared:
            weights = weights / weights.sum(-1, keepdim=True)
        return (weights @ v).transpose(1, 2).flatten(2)


class LatentsShareKeys(LearnedLatents):
    axis = -2


class LatentsCompete(LatentsShareKeys):
    """Slot attention (Locatello et al. 2020): keys are shared out among the slots, then a mean is taken."""

    shared = True


def test_a_softmax_over_learned_queries() -> None:
    finding = one("layout", seeded(LatentsShareKeys))
    assert (finding.name, finding.severity) == ("softmax-axis", "bug")
    assert "which is the learned queries" in finding.evidence
    assert found("layout", seeded(LearnedLatents)) == []
    assert found("layout", seeded(LatentsCompete)) == []


class Slots(nn.Module):
    """x [B, N, 16] -> [B, 3, 16]: the slots compete for the inputs."""

    axis = 1

    def __init__(self) -> None:
        super().__init__()
        self.slots = nn.Parameter(torch.randn(1, 3, 16, generator=torch.Generator().manual_seed(0)))
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.q(self.slots) @ self.k(x).mT * 16**-0.5  # [B, slots, N]
        weights = scores.softmax(self.axis) + 1e-8
        return weights / weights.sum(-1, keepdim=True) @ self.v(x)


class ForEachSlotAlone(Slots):
    """x [B, N, 16] -> [B, 3, 16]: the slots compete for the inputs."""

    axis = -1


def test_slots_that_do_not_compete() -> None:
    finding = one("layout", seeded(ForEachSlotAlone))
    assert (finding.name, finding.severity) == ("softmax-axis", "bug")
    assert "'slots compete'" in finding.evidence
    assert [x for x in found("layout", seeded(Slots)) if x.severity == "bug"] == []


class CutWithOthers(Causal):
    """Scores of other queries stand beside the own ones and are masked, as where windows are cut from chunks."""

    hidden = -1e9

    def normalise(self, scores: Tensor) -> Tensor:
        n = scores.shape[-1]
        weights = torch.cat((scores, scores.roll(1, -2) + self.hidden), -1).softmax(-1)
        return weights[..., :n]


class MixedWithOthers(CutWithOthers):
    """They are not masked."""

    hidden = 0.0


def test_masked_scores_of_other_queries() -> None:
    assert found("layout", seeded(CutWithOthers)) == []
    assert one("layout", seeded(MixedWithOthers)).name == "softmax-axis"
