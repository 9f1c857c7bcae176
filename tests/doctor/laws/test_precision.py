"""Other precisions, and large scores."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.calling.example import Example
from tests.doctor.laws.specimens import Attention, Causal, altered, found, seeded

LAW = "precision"


def _upcast(self: Any, scores: Tensor) -> Tensor:
    return scores.float().softmax(-1).to(scores.dtype)


def _by_hand(self: Any, scores: Tensor) -> Tensor:
    e = scores.exp()
    return e / e.sum(-1, keepdim=True)


def _new_tensor(self: Any, x: Tensor) -> Tensor:
    found = torch.zeros(x.shape[0], x.shape[2], self.width)
    found[:] = x.transpose(1, 2).flatten(2)
    return found


def _with_a_billion(self: Any, scores: Tensor, allowed: Tensor | None) -> Tensor:
    return scores if allowed is None else scores.masked_fill(~allowed, -1e9)


class MinAndMin(Attention):
    """mask: [B, N, N], padding_mask: [B, N], True = may attend; added, each a number that fp16 can hold once."""

    normalise = _upcast

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


OVERFLOWS = ("mask-overflows-half", "note")


@pytest.mark.parametrize(
    ("module", "names", "said"),
    [
        (altered(normalise=_upcast), [], ""),
        (seeded(Attention), [("softmax-half", "note")], "in fp16 the softmax is also computed in fp16"),
        (altered(normalise=_upcast, merge=_new_tensor), [("fails-in-half", "risk"), ("fails-in-double", "risk")], ""),
        (
            altered(forward=lambda self, x: self.attend(x, x, None).float()),
            [("fails-in-half", "note")] * 2 + [("fails-in-double", "note")],
            "its output is float32",
        ),
        (
            altered(normalise=_upcast, merge=lambda self, x: x.transpose(1, 2).flatten(2) * 1e5 / 1e5),
            [("fails-in-half", "risk")],
            "80 of its 240 numbers are NaN or infinite",
        ),
        (altered(normalise=_upcast, fill=_with_a_billion), [OVERFLOWS], "a mask that hides key 1"),
        (seeded(MinAndMin), [OVERFLOWS], "padding on the left with a causal mask"),
        (altered(Causal, fill=_with_a_billion), [OVERFLOWS], "its own mask"),
        (altered(Causal, fill=_with_a_billion).half(), [("mask-overflows-half", "risk")], "its own mask"),
    ],
)
def test_other_precisions(module: nn.Module, names: list[tuple[str, str]], said: str) -> None:
    findings = found(LAW, module)
    assert [(x.name, x.severity) for x in findings] == names
    assert not findings or said in findings[0].evidence


def test_exponentials_that_overflow() -> None:
    (unstable,) = (x for x in found(LAW, altered(normalise=_by_hand)) if x.severity == "bug")
    assert unstable.name == "softmax-unstable"
    assert unstable.numbers["factor"] in (30, 1000)
    assert 0 < unstable.numbers["rows"] <= 15


# The example's call in half precision.


class Added(Attention):
    """The lowest number is added to masked scores."""

    clamped = False

    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        low = torch.finfo(scores.dtype).min
        scores = scores if allowed is None else scores + (~allowed).to(scores) * low
        return scores.clamp(min=low) if self.clamped else scores


def _example(module: Any) -> Example:
    """Scores below -16, all of them masked in the second sequence."""
    with torch.no_grad():
        module.k.weight.copy_(-module.q.weight)
        module.k.bias.copy_(-module.q.bias)
    x = 40 * torch.randn(1, 1, 16, generator=torch.Generator().manual_seed(0)).expand(2, 5, 16).half()
    return (x,), {"padding_mask": torch.tensor([[True] * 5, [False] * 5])}


def test_a_mask_that_overflows_in_the_example() -> None:
    module, clamped = seeded(Added).half(), altered(Added, clamped=True).half()
    (finding,) = (x for x in found(LAW, module, example=_example(module)) if x.severity == "bug")
    assert finding.name == "mask-overflows-half"
    assert "float16 gives NaN or infinity in 5 of 10 rows" in finding.evidence
    assert not [x for x in found(LAW, clamped, example=_example(clamped)) if x.severity == "bug"]


# A softmax that is taken in half precision on purpose.


@pytest.mark.parametrize(
    ("normalise", "words", "code"),
    [
        (lambda self, x: x.half().softmax(-1).float(), "cast to float16 before the softmax, where", "x.half()"),
        (
            lambda self, x: functional.softmax(x, dim=-1, dtype=torch.bfloat16).to(x.dtype),
            "cast to bfloat16 before the softmax, with 8 bits each",
            "dtype=torch.bfloat16",
        ),
        (lambda self, x: x.double().softmax(-1).to(x.dtype), "", ""),
        (lambda self, x: x.softmax(-1).bfloat16().float(), "", ""),
    ],
)
def test_scores_lowered_before_the_softmax(normalise: Any, words: str, code: str) -> None:
    findings = found(LAW, altered(normalise=normalise))
    bugs = [x for x in findings if (x.name, x.severity) == ("softmax-half", "bug")]
    assert len(bugs) == bool(words)
    assert all(words in x.evidence and "in a float32 module" in x.evidence and code in x.where.code for x in bugs)
