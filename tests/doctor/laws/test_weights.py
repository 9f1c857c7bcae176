"""The weights as they are used, and as they come back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.laws import weights as law
from tests.doctor.laws.specimens import Attention
from tests.doctor.laws.styles import Plain
from tests.doctor.laws.told import names, told

# By hand.


def test_what_is_cut_after_the_softmax() -> None:
    before = torch.tensor([[0.1, 0.3, 0.6]])
    assert law.cut_afterwards(before, torch.tensor([[0.1, 0.0, 0.6]])) == pytest.approx(0.7)
    assert law.cut_afterwards(before, torch.tensor([[0.0, 0.3, 0.6]])) is None  # the smallest one: a choice
    assert law.cut_afterwards(before, torch.zeros(1, 3)) is None  # a row of padding
    assert law.cut_afterwards(before, before) is None


def test_how_returned_weights_differ() -> None:
    used = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)).softmax(-1)
    others = {"the scores": torch.ones(4, 4)}
    for same in (used, used.mean(1), used.sum(1), used[:, 1], used + 1):
        assert law.unlike(used, same, None, others) == ""
    for wrong, said in (
        (used.mean(0), "averaged over the examples"),
        (used.mean(2), "averaged over the queries"),
        (used[0], "those of the first example"),
        (used.mT, "transposed"),
        (used.flatten(0, 1).view(3, 2, 4, 5).mean(0), "laid out as [B·H] and viewed as [H·B]"),
        (torch.ones(4, 4), "the scores; there are 2 examples, 3 heads, 4 queries and 5 keys"),
    ):
        assert said in law.unlike(used, wrong, None, others)
    hidden = used * torch.tensor([1, 0, 1, 1, 1])
    assert "before the mask" in law.unlike(hidden / hidden.sum(-1, keepdim=True), used, used, {})


# As used.


class AddedAfterwards(Plain):
    """A learned bias [H, 5, 5]."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(4, 5, 5))

    def normalise(self, scores: Tensor) -> Tensor:
        n = scores.shape[-1]
        return scores.softmax(-1) + self.table[:, :n, :n]


class AddedBefore(AddedAfterwards):
    def normalise(self, scores: Tensor) -> Tensor:
        n = scores.shape[-1]
        return (scores + self.table[:, :n, :n]).softmax(-1)


class DividedByTheMean(Plain):
    def normalise(self, scores: Tensor) -> Tensor:
        weights = scores.softmax(-1) + 1e-8
        return weights / weights.mean(-1, keepdim=True)


class DividedByTheSum(Plain):
    def normalise(self, scores: Tensor) -> Tensor:
        weights = scores.softmax(-1) + 1e-8
        return weights / weights.sum(-1, keepdim=True)


class CutAfterwards(Plain):
    """Two documents in a row, whose weights for one another are removed after the softmax."""

    def normalise(self, scores: Tensor) -> Tensor:
        document = torch.arange(scores.shape[-1]) >= 2
        return scores.softmax(-1) * (document[:, None] == document)


class CutBefore(Plain):
    def normalise(self, scores: Tensor) -> Tensor:
        document = torch.arange(scores.shape[-1]) >= 2
        return scores.masked_fill(document[:, None] != document, -torch.inf).softmax(-1)


class RowsOfZeros(Plain):
    """The first token is padding: its row is set to 0."""

    def normalise(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1) * (torch.arange(scores.shape[-2]) > 0)[:, None]


class KeepsTheLargest(Plain):
    """Weights below the second largest are dropped on purpose."""

    def normalise(self, scores: Tensor) -> Tensor:
        weights = scores.softmax(-1)
        return weights * (weights >= weights.topk(2).values[..., 1:])


class Gated(Plain):
    """Each query decides how much it takes from others."""

    def normalise(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1) * scores.logsumexp(-1, keepdim=True).sigmoid()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (AddedAfterwards, "bias-after-softmax"),
        (DividedByTheMean, "normaliser-wrong"),
        (CutAfterwards, "mask-after-softmax"),
    ],
)
def test_weights_that_no_longer_sum_to_1(module: type[nn.Module], name: str) -> None:
    assert names(law, module) == [(name, "bug")]


@pytest.mark.parametrize("module", [AddedBefore, DividedByTheSum, CutBefore, RowsOfZeros, KeepsTheLargest, Gated])
def test_healthy_weights(module: type[nn.Module]) -> None:
    assert names(law, module) == []


# As returned.


class Shows(Attention):
    """padding_mask: [B, K], True = a real token"""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        q, k, v = (self.split(w(x)) for w in (self.q, self.k, self.v))
        weights = self.weigh(self.score(q, k), self.both(None, padding_mask))
        return self.out(self.merge(weights @ v)), self.shown(weights)

    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        self.early = scores.softmax(-1)
        return self.fill(scores, allowed).softmax(-1)

    def shown(self, weights: Tensor) -> Tensor:
        return weights


class Averages(Shows):
    def shown(self, weights: Tensor) -> Tensor:
        return weights.mean(1)


class OverTheBatch(Shows):
    def shown(self, weights: Tensor) -> Tensor:
        return weights.mean(0)


class MeanBeforeTheMask(Shows):
    def shown(self, weights: Tensor) -> Tensor:
        return self.early.mean(1)


class HeadByHead(Shows):
    """As in the Temporal Fusion Transformer."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out, seen = [], []
        for h in range(self.heads):
            at = slice(4 * h, 4 * h + 4)
            q, k, v = (functional.linear(x, w.weight[at], w.bias[at]) for w in (self.q, self.k, self.v))
            weights = (q @ k.mT / 2).softmax(-1)
            out.append(weights @ v)
            seen.append(weights)
        return self.out(torch.cat(out, -1)), self.shown(torch.stack(seen, 1))


class HeadByHeadOverTheBatch(HeadByHead):
    def shown(self, weights: Tensor) -> Tensor:
        return weights.mean(0)


class Layers(nn.Module):
    """Layers of one head each; the weights are those of the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Shows(heads=1) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.layers:
            x, weights = layer(x)
        return x, weights[:, 0]


class ComputesThemAgain(Shows):
    """The weights that are shown have a softmax of their own."""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        q, k, v = (self.split(w(x)) for w in (self.q, self.k, self.v))
        bias, allowed = torch.linspace(0, 3, x.shape[1]), self.both(None, padding_mask)
        weights = self.weigh(self.score(q, k) + bias, allowed)
        return self.out(self.merge(weights @ v)), self.weigh(self.score(q, k) + self.again(bias), allowed)

    def again(self, bias: Tensor) -> Tensor:
        return bias


class ComputesThemWithoutTheBias(ComputesThemAgain):
    def again(self, bias: Tensor) -> Tensor:
        return torch.zeros_like(bias)


class ReturnsWeights(Attention):
    """output_attentions: also return what it calls attention."""

    def forward(self, x: Tensor, output_attentions: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        q, k, v = (self.split(w(x)) for w in (self.q, self.k, self.v))
        scores = self.score(q, k)
        weights = scores.softmax(-1)
        out = self.out(self.merge(weights @ v))
        return (out, self.shown(scores, weights)) if output_attentions else out

    def shown(self, scores: Tensor, weights: Tensor) -> Tensor:
        return weights


class ReturnsScores(ReturnsWeights):
    def shown(self, scores: Tensor, weights: Tensor) -> Tensor:
        return scores


class OfIds(nn.Module):
    """Padding is the id 0, and is hidden."""

    late = True

    def __init__(self) -> None:
        super().__init__()
        self.table, self.attention = nn.Embedding(30, 16, padding_idx=0), Attention()

    def forward(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        x, hidden = self.table(input_ids), (input_ids == 0)[:, None, None]
        q, k, v = (self.attention.split(w(x)) for w in (self.attention.q, self.attention.k, self.attention.v))
        scores = self.attention.score(q, k)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        shown = weights if self.late else scores.softmax(-1)
        return self.attention.out(self.attention.merge(weights @ v)), shown


class OfIdsBeforeTheMask(OfIds):
    late = False


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (OverTheBatch, "[4, 5, 5] are averaged over the examples of the batch"),
        (HeadByHeadOverTheBatch, "[4, 5, 5] are averaged over the examples of the batch"),
        (MeanBeforeTheMask, "with key 1 hidden, the returned weights [3, 5, 5] are those before the mask"),
        (OfIdsBeforeTheMask, "with padding at the end, the returned weights"),
        (ComputesThemWithoutTheBias, "a softmax of their own"),
        (ReturnsScores, "[3, 4, 5, 5] are the scores before the softmax"),
    ],
)
def test_weights_that_are_not_those_used(module: type[nn.Module], said: str) -> None:
    (finding,) = told(law, module)
    assert (finding.name, finding.severity) == ("weights-wrong", "bug")
    assert said in finding.evidence


@pytest.mark.parametrize("module", [Shows, HeadByHead, ComputesThemAgain, ReturnsWeights, OfIds, Attention])
def test_weights_that_are(module: type[nn.Module]) -> None:
    assert names(law, module) == []


class MindsItsFlag(Shows):
    """need_head_weights: return the weights of each head"""

    def forward(self, x: Tensor, need_head_weights: bool = False) -> tuple[Tensor, Tensor]:
        out, weights = super().forward(x)
        return out, weights if need_head_weights else weights.mean(1)


class IgnoresItsFlag(Shows):
    """need_head_weights: return the weights of each head"""

    def forward(self, x: Tensor, need_head_weights: bool = False) -> tuple[Tensor, Tensor]:
        out, weights = super().forward(x)
        return out, weights.mean(1)


def test_one_map_for_all_heads() -> None:
    assert names(law, Averages) == [("weights-averaged", "risk")]
    assert names(law, IgnoresItsFlag) == [("weights-averaged", "bug")]
    assert names(law, MindsItsFlag) == names(law, nn.MultiheadAttention(16, 4)) == [("weights-averaged", "note")]
    assert not [x for x in names(law, Layers) if x[0] == "weights-wrong"]
