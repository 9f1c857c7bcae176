"""One rule says which numbers of a bias forbid, wherever a mask is read out of a bias."""

from __future__ import annotations

import math

import pytest
import torch

import headwise
from headwise import masks
from headwise.capture.masks import Recognised
from headwise.masks.additive import FORBIDS, split_additive

POSITIONS = torch.tensor([[0.5, -1.0, 2.0], [0.25, 3.0, -4.0], [1.0, 0.0, -2.0]])
CAUSAL = torch.ones(3, 3, dtype=torch.bool).tril()


def test_what_forbids_has_no_weight_in_any_dtype() -> None:
    assert math.exp(FORBIDS) == 0.0
    assert float(torch.tensor(-10000.0, dtype=torch.bfloat16)) <= FORBIDS


@pytest.mark.parametrize("low", [-1e4, -1e9, torch.finfo(torch.float32).min, -torch.inf])
def test_a_mask_in_a_bias_is_split_off(low: float) -> None:
    bias = POSITIONS + torch.zeros(3, 3).masked_fill(~CAUSAL, low)
    for mask, rest in (split_additive(bias), Recognised().additive(bias[None, None], (1, 1, 3, 3))):
        assert mask == masks.causal(offset=0)
        assert torch.equal(rest[0, 0], POSITIONS.masked_fill(~CAUSAL, 0.0))
    q = torch.randn(1, 1, 3, 4, generator=torch.Generator().manual_seed(0))
    whole = headwise.attention(q, q, q, bias=bias)
    assert torch.allclose(headwise.attention(q, q, q, mask=mask, bias=rest), whole, atol=1e-6)


@pytest.mark.parametrize(
    "bias",
    [
        POSITIONS,
        POSITIONS * -4000.0,  # nothing is that far below
        torch.arange(0.0, -30000.0, -100.0)[None].expand(3, -1),  # ALiBi over a long text reaches down step by step
        POSITIONS.masked_fill(~CAUSAL, torch.nan),
        torch.full((3, 3), torch.finfo(torch.float32).min),
    ],
)
def test_a_bias_that_forbids_nothing_stays_as_it_is(bias: torch.Tensor) -> None:
    mask, rest = split_additive(bias)
    assert mask is None
    assert rest is bias


def test_a_row_that_is_low_throughout_keeps_its_number() -> None:
    low = torch.finfo(torch.float32).min
    bias = POSITIONS.clone()
    bias[0], bias[2, 2] = low, low
    mask, rest = split_additive(bias)
    assert mask.draw(3) == "■ ■ ■\n■ ■ ■\n■ ■ ·"
    assert rest[0, 0, 0].tolist() == [low] * 3


def test_a_bias_that_is_the_same_for_all_queries_is_split_once() -> None:
    bias = torch.tensor([[[[0.5, -1.0, -1e9]]]])
    mask, rest = Recognised().additive(bias, (1, 1, 4, 3))
    assert mask == masks.lengths(2)
    assert rest.tolist() == [[[[0.5, -1.0, 0.0]]]]
