"""The example's call in half precision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headwise.doctor.calling.example import Example
from headwise.doctor.patient import NotApplicable
from tests.doctor.checks.specimens import Attention, found, one, seeded


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
    finding = one("example_half", module, example=_example(module))
    assert (finding.name, finding.severity) == ("mask-overflows-half", "bug")
    assert "float16 gives NaN or infinity in 5 of 10 rows" in finding.evidence


def test_one_that_does_not() -> None:
    module = seeded(Clamped).half()
    assert found("example_half", module, example=_example(module)) == []


def test_only_in_half_precision() -> None:
    with pytest.raises(NotApplicable):
        found("example_half", seeded(Added))
