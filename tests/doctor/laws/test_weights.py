"""The weights as they are used, and as they come back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.doctor.laws.specimens import Attention, found, one
from tests.doctor.laws.styles import Plain

torch.manual_seed(0)  # for the modules that are made here


BIAS = torch.randn(4, 5, 5)


def documents(scores: Tensor) -> Tensor:
    """[N, N]: two documents in a row."""
    second = torch.arange(scores.shape[-1]) >= 2
    return second[:, None] == second


def by_the_mean(scores: Tensor) -> Tensor:
    weights = scores.softmax(-1)
    return weights / weights.mean(-1, keepdim=True)


def largest(scores: Tensor) -> Tensor:
    """Weights below the second largest are dropped on purpose."""
    weights = scores.softmax(-1)
    return weights * (weights >= weights.topk(2).values[..., 1:])


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (Plain(normalise=lambda x: x.softmax(-1) + BIAS), "bias-after-softmax"),
        (Plain(normalise=by_the_mean), "normaliser-wrong"),
        (Plain(normalise=lambda x: x.softmax(-1) * documents(x)), "mask-after-softmax"),
    ],
)
def test_weights_that_no_longer_sum_to_1(module: nn.Module, name: str) -> None:
    finding = one("weights", module)
    assert (finding.name, finding.severity) == (name, "bug")


@pytest.mark.parametrize(
    "module",
    [
        Plain(normalise=lambda x: (x + BIAS).softmax(-1)),
        Plain(normalise=lambda x: x.masked_fill(~documents(x), -torch.inf).softmax(-1)),
        Plain(normalise=lambda x: x.softmax(-1) * (torch.arange(x.shape[-2]) > 0)[:, None]),  # a row of padding
        Plain(normalise=largest),
        Plain(normalise=lambda x: x.softmax(-1) * x.logsumexp(-1, keepdim=True).sigmoid()),  # each query has a gate
    ],
)
def test_healthy_weights(module: nn.Module) -> None:
    assert found("weights", module) == []


# As returned.


class Shows(Attention):
    """padding_mask: [B, K], True = a real token"""

    shown: Any = staticmethod(lambda weights, scores: weights)

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        q, k, v = (self.split(w(x)) for w in (self.q, self.k, self.v))
        scores = self.score(q, k)
        weights = self.fill(scores, self.both(None, padding_mask)).softmax(-1)
        return self.out(self.merge(weights @ v)), self.shown(weights, scores)


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
        return self.out(torch.cat(out, -1)), self.shown(torch.stack(seen, 1), None)


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

    def __init__(self, again: float = 1.0) -> None:
        super().__init__()
        self.again = again

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        q, k, v = (self.split(w(x)) for w in (self.q, self.k, self.v))
        bias, allowed = torch.linspace(0, 3, x.shape[1]), self.both(None, padding_mask)
        weights, shown = (self.fill(self.score(q, k) + y * bias, allowed).softmax(-1) for y in (1.0, self.again))
        return self.out(self.merge(weights @ v)), shown


class OnDemand(Shows):
    """output_attentions: also return what it calls attention."""

    def forward(self, x: Tensor, output_attentions: bool = False) -> Any:  # type: ignore[override]
        both = super().forward(x)
        return both if output_attentions else both[0]


class OfIds(Shows):
    """Padding is the id 0, and is hidden."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.table = nn.Embedding(30, 16, padding_idx=0)

    def forward(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(self.table(input_ids), input_ids != 0)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (Shows(shown=lambda x, _: x.mean(1) / 3), "sum to less than 1"),
        (Shows(shown=lambda x, _: x.flatten(0, 1).view(4, 3, 5, 5).mean(0)), "[B·H] and [H·B] are confused"),
        (HeadByHead(shown=lambda x, _: x.mean(0)), "[4, 5, 5] are averaged over the examples of the batch"),
        (Shows(shown=lambda _, x: x.softmax(-1).mean(1)), "key 1 hidden, the returned weights [3, 5, 5] are those bef"),
        (OfIds(shown=lambda _, x: x.softmax(-1)), "with padding at the end, the returned weights"),
        (ComputesThemAgain(again=0.0), "a softmax of their own"),
        (OnDemand(shown=lambda _, x: x), "[3, 4, 5, 5] are the scores before the softmax"),
    ],
)
def test_weights_that_are_not_those_used(module: nn.Module, said: str) -> None:
    finding = one("weights", module)
    assert (finding.name, finding.severity) == ("weights-wrong", "bug")
    assert said in finding.evidence


@pytest.mark.parametrize("module", [Shows, HeadByHead, Layers, ComputesThemAgain, OnDemand, OfIds, Attention])
def test_weights_that_are(module: type[nn.Module]) -> None:
    assert found("weights", module) == []


class WithAFlag(Shows):
    """need_head_weights: return the weights of each head"""

    def __init__(self, minds: bool = True) -> None:
        super().__init__()
        self.minds = minds

    def forward(self, x: Tensor, need_head_weights: bool = False) -> tuple[Tensor, Tensor]:
        out, weights = super().forward(x)
        return out, weights if need_head_weights and self.minds else weights.mean(1)


@pytest.mark.parametrize(
    ("module", "severity"),
    [
        (Shows(shown=lambda x, _: x.mean(1)), "risk"),
        *((WithAFlag(minds=False), "bug"), (WithAFlag(), "note"), (nn.MultiheadAttention(16, 4), "note")),
    ],
)
def test_one_map_for_all_heads(module: nn.Module, severity: str) -> None:
    finding = one("weights", module)
    assert (finding.name, finding.severity) == ("weights-averaged", severity)
