"""The factor between q kᵀ and the softmax, however it is written."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.calling.spec import Spec
from headwise.doctor.laws import scale
from headwise.doctor.patient import NotChecked, Patient
from tests.doctor.laws.specimens import Attention, Cross, found, one, seeded
from tests.doctor.laws.styles import Einsum, Latents, Masked, Plain, assert_at

torch.manual_seed(0)  # for the modules that are made here

# Wrong: 16 wide, four heads of four.


class ByTheWidth(Masked):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1)
        return scores / math.sqrt(self.width)


class Twice(Attention):
    """By itself, and by fused attention once more."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.q(x)) / 2, self.split(self.k(x)), self.split(self.v(x))
        return self.out(self.merge(functional.scaled_dot_product_attention(q, k, v)))


def by_hand(scores: Tensor) -> Tensor:
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def split_by_view(x: Tensor) -> Tensor:
    return x.view(len(x), 4, -1, 4)


@pytest.mark.parametrize(
    ("module", "factor", "words"),
    [
        (ByTheWidth, 1 / 4, "scores are divided by 4.000, which is sqrt(16), the model width;"),
        (Einsum(scaled=lambda x: x), 1.0, "scores are not scaled;"),
        (Einsum(scaled=lambda x: x * 2), 2.0, "by 2.000, which is sqrt(4), the head width: multiplied instead of"),
        (Twice, 1 / 4, "divided by 4.000"),
        (Plain(score=lambda q, k: (q * 4**-0.25) @ k.mT), 4**-0.25, "the fourth root of the head width: only"),
        (Einsum(scaled=lambda x: x / 16**0.5, normalise=by_hand), 1 / 4, "divided by 4.000"),
        (Latents(score=lambda q, k: q @ k.mT * 2), 2.0, "multiplied by 2.000"),
        (Plain(split=split_by_view, score=lambda q, k: q @ k.mT / 4), 1 / 4, "divided by 4.000"),  # no heads, but rows
    ],
)
def test_a_wrong_factor(module: nn.Module | type[nn.Module], factor: float, words: str) -> None:
    finding = one("scale", module)
    assert (finding.name, finding.severity) == ("wrong-scale", "bug")
    assert words in finding.evidence
    assert finding.evidence.endswith("the head width is 4, expected a division by 2.000")
    assert (finding.numbers["expected"], finding.numbers["head_width"]) == (2, 4)
    measured = finding.numbers.get("factor", 1 / finding.numbers.get("divisor", 1))  # neither: not scaled
    assert measured == pytest.approx(factor, rel=1e-3)


def test_the_line_that_scales() -> None:
    assert_at(one("scale", ByTheWidth), ByTheWidth, "return scores / math.sqrt(self.width)")


class T5Like(Plain):
    """A learned bias by bucket, as T5 has it."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.relative_attention_bias, self.by = nn.Embedding(8, 4), by

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        distance = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None]
        return q @ k.mT * self.by + self.relative_attention_bias(distance.clamp(-4, 3) + 4).permute(2, 0, 1)


def test_t5_does_not_scale() -> None:
    finding = one("scale", T5Like(0.5))
    assert (finding.name, finding.severity) == ("t5-scaled", "bug")
    assert "but it is a T5Like, with a bias" in finding.evidence
    assert found("scale", T5Like(1.0)) == []


# Healthy.


class ByLayer(nn.Module):
    """The scores of layer i are divided by i + 1 as well."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Plain(score=lambda q, k, i=i: q @ k.mT / (2 * i)) for i in (1, 2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


@pytest.mark.parametrize(
    "module",
    [
        *(Plain(), Masked(), Einsum(), Cross(), Latents(), ByLayer()),
        Plain(score=lambda q, k: (q * 4**-0.25) @ (k * 4**-0.25).mT),
        Plain(score=lambda q, k: (q * 3 @ k.mT) / 6),  # what meets the softmax counts
        Einsum(normalise=by_hand),
    ],
)
def test_a_healthy_one(module: nn.Module) -> None:
    assert found("scale", module) == []


# Another factor on purpose: said, or at most a risk.


class Luong(nn.Module):
    """A product of states and outputs, which may be projected, and is not divided by anything."""

    def __init__(self, projects: bool = False) -> None:
        super().__init__()
        self.form = nn.Linear(16, 16, bias=False) if projects else nn.Identity()

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return (query @ self.form(keys).mT).softmax(-1) @ keys


class MuP(Plain):
    """1 / D, as maximal update parametrisation (muP) wants it."""


class MAB(Plain):
    """Of Set Transformer, whose release divides by the root of the whole width."""


class Times(Plain):
    """A number that its constructor takes, or a learned one for each head."""

    def __init__(self, multiplier: Any = 0.4) -> None:
        super().__init__()
        self.multiplier = multiplier

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT * self.multiplier


def cosines(q: Tensor, k: Tensor) -> Tensor:
    return functional.normalize(q, dim=-1) @ functional.normalize(k, dim=-1).mT * 10


@pytest.mark.parametrize(
    ("module", "severities"),
    [
        *((Luong(), {"risk"}), (Luong(projects=True), {"risk"}), (Plain(score=lambda q, k: q @ k.mT * 0.37), {"risk"})),
        *((MuP(score=lambda q, k: q @ k.mT / 4), {"note"}), (Times(), set())),
        (Times(nn.Parameter(torch.full((4, 1, 1), 1.3))), {"note"}),
        (MAB(score=lambda q, k: q @ k.mT / 4), {"note"}),
        (Plain(score=cosines), set()),
    ],
)
def test_another_factor_on_purpose_is_no_bug(module: nn.Module, severities: set[str]) -> None:
    assert {finding.severity for finding in found("scale", module)} == severities


def test_a_scale_that_is_stated() -> None:
    assert list(scale.check(Patient(seeded(ByTheWidth), spec=Spec(scale=0.25)))) == []
    (finding,) = scale.check(Patient(seeded(Plain), spec=Spec(scale=0.25)))
    assert finding.numbers["expected"] == 4


def test_scores_that_are_no_multiple_of_products_are_not_judged() -> None:
    with pytest.raises(NotChecked, match="not a multiple"):
        found("scale", Plain(score=lambda q, k: (q @ k.mT / 2).tanh()))


class Constant(Plain):
    """Its factor is that of another width by chance."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT * (0.25 if self.heads == 4 else 0.3)


@pytest.mark.parametrize(("kind", "severity"), [(ByTheWidth, "bug"), (Constant, "risk")])
def test_a_rule_holds_for_another_number_of_heads(kind: Callable[..., nn.Module], severity: str) -> None:
    def make(**changes: Any) -> nn.Module:
        return kind(**{"width": 16, "heads": 4, **changes})

    (finding,) = scale.check(Patient(seeded(kind), make=make))  # type: ignore[arg-type]
    assert finding.severity == severity
