"""What is added to the scores, and the scale."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable
from tests.doctor.checks.specimens import Attention, found, one, seeded
from tests.doctor.checks.styles import Plain, assert_at


class Biased(Plain):
    """A learned bias by distance and head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(63, 4))

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        n = torch.arange(q.shape[2])
        return self.together(q @ k.mT, self.table[n[:, None] - n + 31].permute(2, 0, 1), q.shape[-1] ** -0.5)

    def together(self, products: Tensor, bias: Tensor, scale: float) -> Tensor:
        return products * scale + bias


class BiasTimesScale(Biased):
    def together(self, products: Tensor, bias: Tensor, scale: float) -> Tensor:
        return (products + bias) * scale


class FoldedIntoTheExponent(Biased):
    def together(self, products: Tensor, bias: Tensor, scale: float) -> Tensor:
        return bias + products

    def normalise(self, scores: Tensor) -> Tensor:
        e = ((scores - scores.amax(-1, keepdim=True)) / 2).exp()
        return e / e.sum(-1, keepdim=True)


class Undone(Biased):
    """The bias is divided by the scale first."""

    def together(self, products: Tensor, bias: Tensor, scale: float) -> Tensor:
        return (products + bias / scale) * scale


class Embedded(Biased):
    """The bias comes from an nn.Embedding, on scaled queries."""

    def __init__(self) -> None:
        super().__init__()
        self.relative_attention_bias = nn.Embedding(63, 4)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        n = torch.arange(q.shape[2])
        return (q / 2) @ k.mT + self.relative_attention_bias(n[:, None] - n + 31).permute(2, 0, 1)


class AddsMask(Attention):
    """mask: [B, Q, K], float, added to the attention scores."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (self.split(w(x)) for w in (self.q, self.k, self.v))
        return self.out(self.merge(self.sum(q @ k.mT, None if mask is None else mask[:, None]).softmax(-1) @ v))

    def sum(self, products: Tensor, mask: Tensor | None) -> Tensor:
        return products / 2 if mask is None else products / 2 + mask


class ScalesMask(AddsMask):
    def sum(self, products: Tensor, mask: Tensor | None) -> Tensor:
        return (products if mask is None else products + mask) / 2


@pytest.mark.parametrize("kind", [BiasTimesScale, FoldedIntoTheExponent, ScalesMask])
def test_a_bias_that_is_scaled(kind: type[nn.Module]) -> None:
    finding = one("bias_scaled", seeded(kind))
    assert (finding.name, finding.severity) == ("wrong-scale", "bug")
    assert finding.numbers["factor"] == pytest.approx(0.5, rel=1e-3)
    assert finding.evidence.startswith("the numbers of mask" if kind is ScalesMask else "table")
    if kind is BiasTimesScale:
        assert_at(finding, kind, "(products + bias)")


@pytest.mark.parametrize("kind", [Biased, Undone, Embedded, AddsMask])
def test_a_healthy_one(kind: type[nn.Module]) -> None:
    assert found("bias_scaled", seeded(kind)) == []


def test_without_a_bias() -> None:
    with pytest.raises(NotApplicable):
        found("bias_scaled", seeded(Plain))
