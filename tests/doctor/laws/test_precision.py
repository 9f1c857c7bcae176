"""Other precisions, and large scores."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.calling.example import Example
from tests.doctor.laws.specimens import Attention, Causal, found, one, seeded
from tests.doctor.laws.styles import Einsum, Plain, assert_at

LAW = "precision"


class Exponentials(Attention):
    def normalise(self, scores: Tensor) -> Tensor:
        e = scores.exp()
        return e / e.sum(-1, keepdim=True)


class Upcasts(Attention):
    def normalise(self, scores: Tensor) -> Tensor:
        return scores.float().softmax(-1).to(scores.dtype)


class NewTensors(Upcasts):
    def merge(self, x: Tensor) -> Tensor:
        found = torch.zeros(x.shape[0], x.shape[2], self.width)
        found[:] = x.transpose(1, 2).flatten(2)
        return found


class ReturnsFloats(Upcasts):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).float()


class FillsWithABillion(Upcasts):
    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return scores if allowed is None else scores.masked_fill(~allowed, -1e9)


class CausalWithABillion(Causal):
    """-1e9 in its own mask."""

    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return scores if allowed is None else scores.masked_fill(~allowed, -1e9)


class Squares(Upcasts):
    """Numbers on the way that only fp16 cannot hold."""

    def merge(self, x: Tensor) -> Tensor:
        return super().merge(x) * 1e5 / 1e5


class Fused(Attention):
    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        return self.out(self.merge(functional.scaled_dot_product_attention(q, k, v, allowed)))


def names(findings: list) -> list[tuple[str, str]]:
    return [(x.name, x.severity) for x in findings]


def test_exponentials_that_overflow() -> None:
    findings = found(LAW, seeded(Exponentials))
    assert ("softmax-unstable", "bug") in names(findings)
    unstable = next(x for x in findings if x.severity == "bug")
    assert unstable.numbers["factor"] in (30, 1000)
    assert 0 < unstable.numbers["rows"] <= 15


def test_new_tensors_of_another_dtype() -> None:
    findings = found(LAW, seeded(NewTensors))
    assert names(findings) == [("fails-in-half", "risk"), ("fails-in-double", "risk")]
    assert names(found(LAW, seeded(ReturnsFloats))) == [("fails-in-half", "note")] * 2 + [("fails-in-double", "note")]


def test_a_fill_that_fp16_cannot_hold() -> None:
    finding = one(LAW, seeded(FillsWithABillion))
    assert (finding.name, finding.severity) == ("mask-overflows-half", "note")
    assert "overflow" in finding.evidence


class MinAndMin(Upcasts):
    """mask: [B, N, N], padding_mask: [B, N], True = may attend; added, each a number that fp16 can hold once."""

    def forward(self, x: Tensor, mask: Tensor | None = None, padding_mask: Tensor | None = None) -> Tensor:
        self.padding = padding_mask
        return self.attend(x, x, None if mask is None else mask.bool()[:, None])

    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        if allowed is not None:
            scores = scores + torch.where(allowed, 0.0, -6e4).to(scores.dtype)
        if self.padding is not None:
            real = self.padding.bool()
            for padding in (real[:, None, None], real[:, None, :, None]):
                scores = scores + torch.where(padding, 0.0, -6e4).to(scores.dtype)
        return scores


def test_two_masks_that_add_up_to_infinity() -> None:
    finding = one(LAW, seeded(MinAndMin))
    assert finding.name == "mask-overflows-half"
    assert "padding on the left with a causal mask" in finding.evidence


def test_its_own_mask_in_fp16() -> None:
    finding = one(LAW, seeded(CausalWithABillion))
    assert (finding.name, finding.severity) == ("mask-overflows-half", "note")
    assert "its own mask" in finding.evidence


def test_what_fails_in_half_is_a_risk_for_a_module_in_half() -> None:
    finding = one(LAW, seeded(CausalWithABillion).half())
    assert (finding.name, finding.severity) == ("mask-overflows-half", "risk")


def test_numbers_that_fp16_cannot_hold() -> None:
    finding = one(LAW, seeded(Squares))
    assert (finding.name, finding.severity) == ("fails-in-half", "risk")
    assert "240 numbers are NaN or infinite" in finding.evidence


def test_a_softmax_in_half_is_a_note() -> None:
    finding = one(LAW, seeded(Attention))
    assert (finding.name, finding.severity) == ("softmax-half", "note")
    assert 0 < finding.numbers["error"] < 0.05
    assert finding.where.code == "return scores.softmax(-1)"


def test_healthy_ones() -> None:
    assert found(LAW, seeded(Upcasts)) == []
    assert found(LAW, seeded(Fused)) == []


# The example's call in half precision.


class Added(Attention):
    """The lowest number is added to masked scores."""

    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        low = torch.finfo(scores.dtype).min
        return scores if allowed is None else scores + (~allowed).to(scores) * low


class Clamped(Added):
    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return super().fill(scores, allowed).clamp(min=torch.finfo(scores.dtype).min)


def _example(module: Attention) -> Example:
    """Scores below -16, all of them masked in the second sequence."""
    with torch.no_grad():
        module.k.weight.copy_(-module.q.weight)
        module.k.bias.copy_(-module.q.bias)
    x = 40 * torch.randn(1, 1, 16, generator=torch.Generator().manual_seed(0)).expand(2, 5, 16).half()
    return (x,), {"padding_mask": torch.tensor([[True] * 5, [False] * 5])}


def test_a_mask_that_overflows() -> None:
    module = seeded(Added).half()
    (finding,) = (x for x in found(LAW, module, example=_example(module)) if x.severity == "bug")
    assert (finding.name, finding.severity) == ("mask-overflows-half", "bug")
    assert "float16 gives NaN or infinity in 5 of 10 rows" in finding.evidence


def test_one_that_does_not() -> None:
    module = seeded(Clamped).half()
    assert not [x for x in found(LAW, module, example=_example(module)) if x.severity == "bug"]
    assert not [x for x in found(LAW, seeded(Added)) if x.severity == "bug"]


# A softmax that is taken in half precision on purpose.


class InFloat16(Plain):
    def normalise(self, scores: Tensor) -> Tensor:
        return scores.half().softmax(-1).float()


class InBfloat16(Einsum):
    def normalise(self, scores: Tensor) -> Tensor:
        return functional.softmax(scores, dim=-1, dtype=torch.bfloat16).to(scores.dtype)


@pytest.mark.parametrize(
    ("module", "words", "code"),
    [
        (InFloat16, "cast to float16 before the softmax, where scores above 65504", "scores.half().softmax(-1)"),
        (InBfloat16, "cast to bfloat16 before the softmax, with 8 bits each", "dtype=torch.bfloat16"),
    ],
)
def test_scores_lowered_before_the_softmax(module: type[nn.Module], words: str, code: str) -> None:
    finding = next(x for x in found(LAW, seeded(module)) if x.severity == "bug")
    assert finding.name == "softmax-half"
    assert "in a float32 module" in finding.evidence
    assert words in finding.evidence
    assert_at(finding, module, code)


class Raised(Plain):
    def normalise(self, scores: Tensor) -> Tensor:
        return scores.double().softmax(-1).to(scores.dtype)


class LoweredAfterwards(Einsum):
    def normalise(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1).bfloat16().float()


@pytest.mark.parametrize("module", [Plain, Einsum, Raised, LoweredAfterwards])
def test_a_softmax_that_is_not_lowered(module: type[nn.Module]) -> None:
    assert not [x for x in found(LAW, seeded(module)) if x.severity == "bug"]
