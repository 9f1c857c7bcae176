"""The factor between q kᵀ and the softmax, however it is written."""

from __future__ import annotations

import math
import types
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.calling.spec import Spec
from headwise.doctor.finding import Finding
from headwise.doctor.laws.scale import check, descriptions
from headwise.doctor.patient import NotChecked, Patient
from tests.doctor.laws.specimens import Cross, found, one, seeded
from tests.doctor.laws.styles import Einsum, Masked, Plain, assert_at


def with_spec(module: nn.Module, **stated: object) -> list[Finding]:
    return list(check(Patient(module, spec=Spec(**stated))))  # type: ignore[arg-type]


# Wrong: 16 wide, four heads of four.


class ByTheWidth(Masked):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1)
        return scores / math.sqrt(self.width)


class AsTheyAre(Einsum):
    def scaled(self, scores: Tensor) -> Tensor:
        return scores


class Multiplied(Einsum):
    def scaled(self, scores: Tensor) -> Tensor:
        return scores * self.head_dim**0.5


class WithoutTheRoot(Plain):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return (q / q.shape[-1]) @ k.mT


class Twice(Plain):
    """By itself, and by fused attention once more."""

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)) / 2, self.split(self.k(memory)), self.split(self.v(memory))
        return self.out(self.merge(functional.scaled_dot_product_attention(q, k, v)))


class OnlyQueries(Plain):
    """Half of the scale that is meant to stand on both."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return (q * q.shape[-1] ** -0.25) @ k.mT


class ByHand(Einsum):
    """exp and sum written out, the maximum taken off."""

    def scaled(self, scores: Tensor) -> Tensor:
        return scores / self.proj.in_features**0.5

    def normalise(self, scores: Tensor) -> Tensor:
        e = (scores - scores.amax(-1, keepdim=True)).exp()
        return e / e.sum(-1, keepdim=True)


class ByTheHeads(nn.Module):
    """Three heads of four."""

    def __init__(self) -> None:
        super().__init__()
        self.n_head = 3
        self.c_attn, self.c_proj = nn.Linear(12, 36), nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        b, n, m = x.shape
        q, k, v = (y.view(b, n, 3, 4).transpose(1, 2) for y in self.c_attn(x).split(12, dim=2))
        weights = torch.softmax(q @ k.transpose(-1, -2) * (1.0 / math.sqrt(self.n_head)), dim=-1)
        return self.c_proj((weights @ v).transpose(1, 2).contiguous().view(b, n, m))


@pytest.mark.parametrize(
    ("module", "scale", "words"),
    [
        (ByTheWidth, 1 / 4, "scores are divided by 4.000, which is sqrt(16), the model width;"),
        (AsTheyAre, 1.0, "scores are not scaled;"),
        (
            Multiplied,
            2.0,
            "scores are multiplied by 2.000, which is sqrt(4), the head width: multiplied instead of divided;",
        ),
        (WithoutTheRoot, 1 / 4, "divided by 4.000"),
        (Twice, 1 / 4, "divided by 4.000"),
        (OnlyQueries, 4**-0.25, "the fourth root of the head width: only"),
        (ByHand, 1 / 4, "divided by 4.000"),
        (ByTheHeads, 3**-0.5, "divided by 1.732, which is sqrt(3), the number of heads;"),
    ],
)
def test_a_wrong_factor(module: type[nn.Module], scale: float, words: str) -> None:
    finding = one("scale", seeded(module))
    assert (finding.name, finding.severity) == ("wrong-scale", "bug")
    assert words in finding.evidence
    assert finding.evidence.endswith("the head width is 4, expected a division by 2.000")
    assert finding.numbers["scale"] == pytest.approx(scale, rel=1e-3)
    assert finding.numbers["expected"] == 0.5
    assert finding.numbers["head_width"] == 4


@pytest.mark.parametrize(
    ("module", "code"),
    [
        (ByTheWidth, "return scores / math.sqrt(self.width)"),
        (Multiplied, "return scores * self.head_dim**0.5"),
        (ByTheHeads, "weights = torch.softmax("),
    ],
)
def test_the_line_that_scales(module: type[nn.Module], code: str) -> None:
    assert_at(one("scale", seeded(module)), module, code)


# T5 and YaRN.


class RelativeBias(Plain):
    """A learned bias by bucket, as T5 has it."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.relative_attention_bias = nn.Embedding(8, 4)
        self.scale = scale

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        distance = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None]
        bias = self.relative_attention_bias(distance.clamp(-4, 3) + 4)
        return q @ k.mT * self.scale + bias.permute(2, 0, 1)


class T5Like(RelativeBias):
    """Said to be one."""


class Latent(nn.Module):
    """4 heads of 6 plain features and 4 that keys share."""

    scale = 10**-0.5 * 1.2608**2
    yarn = True

    def __init__(self) -> None:
        super().__init__()
        self.rope_scaling = {"factor": 40, "mscale": 1.0, "mscale_all_dim": 0.707} if self.yarn else None
        self.q, self.down, self.up, self.out = nn.Linear(16, 40), nn.Linear(16, 12), nn.Linear(8, 40), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q = self.q(x).view(b, n, 4, 10).transpose(1, 2)
        latent, shared = self.down(x).split([8, 4], -1)
        plain, v = self.up(latent).view(b, n, 4, 10).transpose(1, 2).split([6, 4], -1)
        k = torch.cat([plain, shared[:, None].expand(-1, 4, -1, -1)], -1)
        return self.out(((q @ k.mT * self.scale).softmax(-1) @ v).transpose(1, 2).flatten(2))


class LatentWithoutIt(Latent):
    scale = 10**-0.5


class LatentWithoutYaRN(LatentWithoutIt):
    yarn = False


def test_the_temperature_of_latent_attention() -> None:
    finding = one("scale", seeded(LatentWithoutIt))
    assert (finding.name, finding.severity) == ("wrong-scale", "bug")
    assert "without the temperature" in finding.evidence
    assert finding.numbers["expected"] == pytest.approx(10**-0.5 * 1.2608**2, rel=1e-3)
    for kind in (Latent, LatentWithoutYaRN):
        assert found("scale", seeded(kind)) == []


# Healthy.


class FourthRoots(Plain):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return (q * q.shape[-1] ** -0.25) @ (k * k.shape[-1] ** -0.25).mT


class ScaledQueries(Einsum):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(self.qkv(x))
        weights = torch.einsum("bqhd,bkhd->bhqk", q * self.head_dim**-0.5, k).softmax(-1)
        return self.proj(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2))


class HealthyByHand(ByHand):
    def scaled(self, scores: Tensor) -> Tensor:
        return scores / self.head_dim**0.5


class InTheWeights(Plain):
    """What the code multiplies by is undone by the weights: only the scores that meet the softmax count."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return (q * 3 @ k.mT) / (3 * math.sqrt(q.shape[-1]))


class ByLayer(nn.Module):
    """The scores of layer i are divided by i + 1 as well."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(i) for i in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


class Layer(Plain):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT / (2 * (self.number + 1))


@pytest.mark.parametrize(
    "module",
    [
        Plain,
        Masked,
        Einsum,
        Cross,
        FourthRoots,
        ByLayer,
        ScaledQueries,
        HealthyByHand,
        InTheWeights,
        partial(nn.MultiheadAttention, 16, 4, batch_first=True),
    ],
)
def test_a_healthy_one(module: type[nn.Module]) -> None:
    assert found("scale", seeded(module)) == []


# Another factor on purpose: said, or at most a risk.


class Luong(nn.Module):
    """Dot-product attention over the states themselves."""

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return (query @ keys.mT).softmax(-1) @ keys


class MuP(Plain):
    """1 / D, as maximal update parametrisation (muP) wants it."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT / q.shape[-1]


class Stated(Plain):
    """A configuration of the part states the width."""

    def __init__(self) -> None:
        super().__init__()
        self.cfg = types.SimpleNamespace(query_pre_attn_scalar=8.0)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT * self.cfg.query_pre_attn_scalar**-0.5


class StatedInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Stated()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(x)


class Temperature(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.full((4, 1, 1), 1.3))

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT * self.temperature


class QKNorm(Plain):
    """Queries and keys of length 1, and a factor that makes up for it."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return functional.normalize(q, dim=-1) @ functional.normalize(k, dim=-1).mT * 10


class NormedAndScaled(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.q_norm, self.k_norm = nn.LayerNorm(4), nn.LayerNorm(4)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return self.q_norm(q) @ self.k_norm(k).mT * 0.5


@pytest.mark.parametrize(
    ("module", "severities"),
    [
        (Luong, {"risk"}),
        (MuP, {"note"}),
        (StatedInside, set()),
        (Temperature, {"note"}),
        (QKNorm, set()),
        (NormedAndScaled, set()),
    ],
)
def test_another_factor_on_purpose_is_no_bug(module: type[nn.Module], severities: set[str]) -> None:
    patient = Patient(seeded(module))
    assert {finding.severity for finding in check(patient)} == severities


def test_a_factor_that_is_no_power_of_a_width_is_a_risk() -> None:
    class Odd(Plain):
        def score(self, q: Tensor, k: Tensor) -> Tensor:
            return q @ k.mT * 0.37

    finding = one("scale", seeded(Odd))
    assert finding.severity == "risk"
    assert "which is not a power of any width here" in finding.evidence


def test_a_scale_that_is_stated() -> None:
    module = seeded(ByTheWidth)
    assert with_spec(module, scale=0.25) == []
    (finding,) = with_spec(seeded(Plain), scale=0.25)
    assert finding.numbers["expected"] == 0.25


def test_scores_that_are_no_multiple_of_products_are_not_judged() -> None:
    class Additive(Plain):
        def score(self, q: Tensor, k: Tensor) -> Tensor:
            return (q @ k.mT / 2).tanh()

    with pytest.raises(NotChecked, match="not a multiple"):
        found("scale", seeded(Additive))


class Latents(nn.Module):
    """Six learned queries, which are projected after they were repeated for each example."""

    factor = 4**-0.5

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(6, 16))
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(self.latents.expand(len(x), -1, -1))
        q, k, v = (y.view(*y.shape[:2], 4, 4).transpose(1, 2) for y in (q, self.k(x), self.v(x)))
        return self.out(((q @ k.mT * self.factor).softmax(-1) @ v).transpose(1, 2).flatten(2))


class LatentsTimesTheRoot(Latents):
    factor = 4**0.5


def test_learned_queries() -> None:
    finding = one("scale", seeded(LatentsTimesTheRoot))
    assert (finding.name, finding.severity) == ("wrong-scale", "bug")
    assert found("scale", seeded(Latents)) == []


class Bilinear(nn.Module):
    """Luong's "general" attention: a product of states and projected outputs, which is not divided by anything."""

    def __init__(self) -> None:
        super().__init__()
        self.form, self.out = nn.Linear(16, 16, bias=False), nn.Linear(32, 16)

    def forward(self, states: Tensor, outputs: Tensor) -> Tensor:
        context = (states @ self.form(outputs).mT).softmax(-1) @ outputs
        return self.out(torch.cat([context, states], -1)).tanh()


def test_a_bilinear_form_need_not_be_scaled() -> None:
    assert one("scale", seeded(Bilinear)).severity == "risk"


class AsInThePaper(Plain):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        # the paper scales by the full width, for all head counts
        return q @ k.transpose(-2, -1) / self.width**0.5


class ByAScalar(Plain):
    def __init__(self, width: int = 32, heads: int = 4, multiplier: float = 0.4) -> None:
        super().__init__(width, heads)
        self.multiplier = multiplier

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-2, -1) * self.multiplier


@pytest.mark.parametrize("kind", [AsInThePaper, ByAScalar])
def test_a_factor_that_a_comment_or_an_argument_means(kind: type[nn.Module]) -> None:
    assert not [x for x in found("scale", seeded(kind, 32, 4)) if x.severity != "note"]


class MAB(Plain):
    """Of Set Transformer, whose release divides by the root of the whole width."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__(width, heads)
        self.dim_V = width

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-2, -1) / self.dim_V**0.5


def test_a_released_scale() -> None:
    assert {x.severity for x in found("scale", seeded(MAB, 32, 4))} == {"note"}


# What is pure arithmetic, and other constructions.


def test_descriptions() -> None:
    sizes = {"head width": 8, "model width": 32, "number of keys": 5}
    assert descriptions(1.0, sizes) == [""]
    assert descriptions(32**-0.5, sizes) == [  # 1 / sqrt(32) is also half of 1 / sqrt(8)
        "which is sqrt(32), the model width"
    ]
    assert descriptions(1 / 8, sizes)[0].startswith("which is 8, the head width without the square root")
    assert descriptions(0.37, sizes) == []


def test_products_of_rows_that_are_not_heads_have_a_scale() -> None:
    class SplitByView(Plain):
        def split(self, x: Tensor) -> Tensor:
            return x.view(len(x), self.heads, -1, self.width // self.heads)

        def score(self, q: Tensor, k: Tensor) -> Tensor:
            return q @ k.mT / 4

    assert one("scale", seeded(SplitByView)).severity == "bug"


class Constant(Plain):
    """Its factor is that of another width by chance."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT * (0.25 if self.heads == 4 else 0.3)


@pytest.mark.parametrize(("kind", "severity"), [(ByTheWidth, "bug"), (Constant, "risk")])
def test_a_rule_holds_for_another_number_of_heads(kind: type[Plain], severity: str) -> None:
    def make(**changes: int) -> nn.Module:
        return kind(**{"width": 16, "heads": 4, **changes})

    (finding,) = check(Patient(seeded(kind), make=make))
    assert finding.severity == severity
