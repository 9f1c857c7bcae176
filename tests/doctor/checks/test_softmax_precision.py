"""A softmax that is taken in half precision on purpose."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.doctor.checks.specimens import found, one, seeded
from tests.doctor.checks.styles import Einsum, Plain, assert_at


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
    finding = one("softmax_precision", seeded(module))
    assert (finding.name, finding.severity) == ("softmax-half", "bug")
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
def test_a_healthy_one(module: type[nn.Module]) -> None:
    assert found("softmax_precision", seeded(module)) == []


class ProductsInHalf(Plain):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return (q.bfloat16() @ k.bfloat16().mT).float() / q.shape[-1] ** 0.5


def test_products_in_half_precision() -> None:
    finding = one("softmax_precision", seeded(ProductsInHalf))
    assert (finding.name, finding.severity) == ("softmax-half", "risk")
    assert "the products of queries and keys are computed in bfloat16" in finding.evidence
