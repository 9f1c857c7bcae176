"""Softmaxes in every style of code: torch's own, and exponentials over their sum, written out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from headwise.doctor.reading import marks
from tests.doctor.reading.following import B, N, follow, inputs, softmax_of


def by_hand(s: Tensor) -> Tensor:
    e = torch.exp(s - s.max(-1, keepdim=True).values)
    return e / e.sum(-1, keepdim=True)


def in_place(s: Tensor) -> Tensor:
    s = s - s.amax(-1, keepdim=True)
    e = s.exp_()
    return e.div_(e.sum(-1, keepdim=True))


def with_a_guard(s: Tensor) -> Tensor:
    e = s.exp() * torch.ones_like(s).tril()
    return e / (e.sum(dim=-1, keepdim=True) + 1e-9)


SOFTMAXES: dict[str, Callable[[Tensor], Tensor]] = {
    "method": lambda s: s.softmax(-1),
    "float32": lambda s: functional.softmax(s, dim=-1, dtype=torch.float32).to(s.dtype),
    "by hand": by_hand,
    "in place": in_place,
    "guarded": with_a_guard,
    "times the inverse": lambda s: s.exp() * (1 / s.exp().sum(-1, keepdim=True)),
    "less the log-sum-exp": lambda s: (s - s.logsumexp(-1, keepdim=True)).exp(),
    "normalize": lambda s: functional.normalize(s.exp(), p=1, dim=-1),
    "powers of two in place": lambda s: (lambda e: e / e.sum(-1, keepdim=True))((s / math.log(2)).exp2_()),
    "two exponentials": lambda s: torch.exp(s) / torch.exp(s).sum(-1)[..., None],
}
WRITTEN_OUT = list(SOFTMAXES)[2:]
SHIFTED = ("by hand", "in place", "less the log-sum-exp")  # what exp was given


@pytest.mark.parametrize("style", SOFTMAXES)
def test_a_softmax_is_one_in_any_style(style: str) -> None:
    run = follow(lambda q, k: SOFTMAXES[style](q @ k.mT), *inputs(2))
    found = softmax_of(run)
    q, k = inputs(2)
    assert found.dims == (2,)
    assert found.by_hand == (style in WRITTEN_OUT)
    assert torch.allclose(found.weights, run.result, atol=1e-6)
    moved = found.scores - q @ k.mT
    if style in SHIFTED:
        moved = moved - moved.mean(-1, keepdim=True)
    assert float(moved.abs().max()) < 1e-5
    product = next(seed for seed in run.seeds if seed.kind == "product")
    assert torch.equal(marks.element_of(found.source), torch.arange(B * N * N).reshape(B, N, N))
    assert set(marks.seed_of(found.source).flatten().tolist()) == {product.number}
