"""The weights that come back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.patient import NotChecked
from tests.doctor.checks.specimens import Attention, found, one, seeded


class Shows(Attention):
    """padding_mask: [B, K], True = a real token"""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        q, k, v = (self.split(w(x)) for w in (self.q, self.k, self.v))
        weights = self.weigh(self.score(q, k), self.both(None, padding_mask))
        return self.out(self.merge(weights @ v)), self.shown(weights)

    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return self.fill(scores, allowed).softmax(-1)

    def shown(self, weights: Tensor) -> Tensor:
        return weights


class Averages(Shows):
    def shown(self, weights: Tensor) -> Tensor:
        return weights.mean(1)


class WrongAxis(Shows):
    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return self.fill(scores, allowed).softmax(-2)


class MasksWeights(Shows):
    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        weights = scores.softmax(-1)
        return weights if allowed is None else weights * allowed


class OverTheBatch(Shows):
    def shown(self, weights: Tensor) -> Tensor:
        return weights.mean(0)


class OverTheQueries(Shows):
    def shown(self, weights: Tensor) -> Tensor:
        return weights.mean(2)


class ViewedTheOtherWay(Shows):
    """The mean over heads, of [B·H] viewed as [H, B]."""

    def shown(self, weights: Tensor) -> Tensor:
        b, h, q, k = weights.shape
        return weights.reshape(b * h, q, k).view(h, b, q, k).mean(0)


class Transposed(Shows):
    def shown(self, weights: Tensor) -> Tensor:
        return weights.mT


class BeforeTheMask(Shows):
    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        self.early = scores.softmax(-1)
        return super().weigh(scores, allowed)

    def shown(self, weights: Tensor) -> Tensor:
        return self.early


class MeanBeforeTheMask(BeforeTheMask):
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


class ShowsTheLast(HeadByHead):
    def shown(self, weights: Tensor) -> Tensor:
        return weights[:, -1]


class ShowsTheirMean(HeadByHead):
    def shown(self, weights: Tensor) -> Tensor:
        return weights.mean(1)


class Layers(nn.Module):
    """Layers of one head each; the weights are those of the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Shows(heads=1) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.layers:
            x, weights = layer(x)
        return x, weights[:, 0]


class Latents(nn.Module):
    """Four learned queries attend to the input."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(4, 16))
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q = self.q(self.latents).expand(len(x), -1, -1)
        q, k, v = (y.view(*y.shape[:2], 4, 4).transpose(1, 2) for y in (q, self.k(x), self.v(x)))
        weights = (q @ k.mT / 2).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2)), self.shown(weights)

    def shown(self, weights: Tensor) -> Tensor:
        return weights


class LatentsOverTheBatch(Latents):
    def shown(self, weights: Tensor) -> Tensor:
        return weights.mean(0)


class IgnoresItsFlag(Shows):
    """need_head_weights: return the weights of each head"""

    def forward(self, x: Tensor, need_head_weights: bool = False) -> tuple[Tensor, Tensor]:
        out, weights = super().forward(x)
        return out, weights.mean(1)


class MindsItsFlag(Shows):
    """need_head_weights: return the weights of each head"""

    def forward(self, x: Tensor, need_head_weights: bool = False) -> tuple[Tensor, Tensor]:
        out, weights = super().forward(x)
        return out, weights if need_head_weights else weights.mean(1)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (OverTheBatch, "[4, 5, 5] are averaged over the examples of the batch"),
        (OverTheQueries, "[3, 4, 5] are averaged over the queries"),
        (ViewedTheOtherWay, "[3, 5, 5] are of several examples at once: they are laid out as [B·H] and viewed as"),
        (Transposed, "[3, 4, 5, 5] are transposed"),
        (BeforeTheMask, "are those before the mask: masked keys have weights of up to"),
        (MeanBeforeTheMask, "[3, 5, 5] are those before the mask: masked keys have weights of up to"),
        (ShowsTheLast, "[3, 5, 5] are those of the last of 4 heads"),
        (LatentsOverTheBatch, "[4, 4, 5] are averaged over the examples of the batch"),
    ],
)
def test_weights_that_are_not_those_used(module: type[nn.Module], said: str) -> None:
    wrong = [x for x in found("weights_returned", seeded(module)) if x.name == "weights-wrong"]
    assert [x.severity for x in wrong] == ["bug"]
    assert said in wrong[0].evidence


def test_a_flag_without_effect() -> None:
    finding = one("weights_returned", seeded(IgnoresItsFlag))
    assert (finding.name, finding.severity) == ("weights-averaged", "bug")
    assert "need_head_weights has no effect" in finding.evidence
    assert one("weights_returned", seeded(MindsItsFlag)).severity == "note"


def test_weights_of_learned_queries() -> None:
    with pytest.raises(NotChecked):
        found("weights_returned", seeded(Latents))


def test_weights_that_are_averaged_unasked() -> None:
    finding = one("weights_returned", seeded(Averages))
    assert (finding.name, finding.severity, finding.numbers["heads"]) == ("weights-averaged", "risk", 4)
    assert "[3, 5, 5]" in finding.evidence
    torchs = one("weights_returned", nn.MultiheadAttention(16, 4))
    assert torchs.severity == "note"
    assert "average_attn_weights" in torchs.evidence


def test_columns_that_add_up_to_one() -> None:
    finding = one("weights_returned", seeded(WrongAxis))
    assert (finding.name, finding.severity) == ("softmax-axis", "bug")
    assert finding.numbers["least"] < 0.95 < 1.05 < finding.numbers["most"]


def test_weights_that_are_masked_after_the_softmax() -> None:
    finding = one("weights_returned", seeded(MasksWeights))
    assert (finding.name, finding.severity) == ("mask-after-softmax", "bug")
    assert 0.1 < finding.numbers["least"] < 0.9


def test_heads_in_a_loop_and_layers_of_one_head() -> None:
    for module in (HeadByHead, ShowsTheirMean, Layers):
        assert not [x for x in found("weights_returned", seeded(module)) if x.name == "weights-wrong"]


def test_healthy_ones() -> None:
    assert found("weights_returned", seeded(Shows)) == []
    assert found("weights_returned", nn.MultiheadAttention(16, 1)) == []
    with pytest.raises(NotChecked, match="no weights"):
        found("weights_returned", seeded(Attention))


class ComputesThemAgain(Shows):
    """The weights that are shown have a softmax of their own."""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        q, k, v = (self.split(w(x)) for w in (self.q, self.k, self.v))
        bias = torch.linspace(0, 3, x.shape[1])
        allowed = self.both(None, padding_mask)
        weights = self.weigh(self.score(q, k) + bias, allowed)
        return self.out(self.merge(weights @ v)), self.weigh(self.score(q, k) + self.again(bias), allowed)

    def again(self, bias: Tensor) -> Tensor:
        return bias


class ComputesThemWithoutTheBias(ComputesThemAgain):
    def again(self, bias: Tensor) -> Tensor:
        return torch.zeros_like(bias)


def test_weights_that_are_computed_again() -> None:
    finding = one("weights_returned", seeded(ComputesThemWithoutTheBias))
    assert (finding.name, finding.severity) == ("weights-wrong", "bug")
    assert "a softmax of their own" in finding.evidence
    assert finding.numbers["apart"] > 0.1
    assert found("weights_returned", seeded(ComputesThemAgain)) == []


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


def test_weights_of_a_model_that_makes_its_mask_of_ids() -> None:
    finding = one("weights_returned", seeded(OfIdsBeforeTheMask))
    assert (finding.name, finding.severity) == ("weights-wrong", "bug")
    assert "with padding at the end" in finding.evidence
    assert found("weights_returned", seeded(OfIds)) == []


class Slots(WrongAxis):
    """The queries compete for the keys."""


def test_queries_that_compete() -> None:
    assert found("weights_returned", seeded(Slots)) == []
    assert one("weights_returned", seeded(WrongAxis)).name == "softmax-axis"


class ReturnsScores(Attention):
    """output_attentions: also return what it calls attention."""

    def forward(self, x: Tensor, output_attentions: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        q, k, v = (self.split(w(x)) for w in (self.q, self.k, self.v))
        scores = self.score(q, k)
        weights = scores.softmax(-1)
        out = self.out(self.merge(weights @ v))
        return (out, self.shown(scores, weights)) if output_attentions else out

    def shown(self, scores: Tensor, weights: Tensor) -> Tensor:
        return scores


class ReturnsWeights(ReturnsScores):
    def shown(self, scores: Tensor, weights: Tensor) -> Tensor:
        return weights


def test_scores_in_the_place_of_weights() -> None:
    finding = one("weights_returned", seeded(ReturnsScores))
    assert "with output_attentions=True the returned weights [3, 4, 5, 5] are the scores" in finding.evidence
    assert found("weights_returned", seeded(ReturnsWeights)) == []
