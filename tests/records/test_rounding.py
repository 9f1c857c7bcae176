"""Records of half precision: the bound of what a model rounds, and its own rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import headwise
from headwise import masks
from headwise.call import make_call
from headwise.records import AttentionRecord
from tests.capture.test_families import FAMILIES, build, eager

HALF = [torch.bfloat16, torch.float16]


def record(q: Tensor, k: Tensor, **options: Any) -> AttentionRecord:
    return AttentionRecord(make_call(q, k, k, **options))


def test_a_bound_that_can_be_followed() -> None:
    q, k = torch.tensor([[[[2.0]]]]).bfloat16(), torch.tensor([[[[1.0], [3.0]]]]).bfloat16()
    found, eps = record(q, k, scale=1.0), 2.0**-7
    weights = torch.softmax(torch.tensor([2.0, 6.0]), 0)
    exponent = 2 * (4 * eps * 6 + 2.0**-23 * 2 * 3) + eps
    torch.testing.assert_close(found.rounding_bound()[0, 0, 0], weights * (torch.tensor(exponent).exp() - 1))
    assert float(record(q * 1000, k * 1000, scale=1.0).rounding_bound().max()) == 1.0  # no weight is off by more


def test_rounding_that_can_be_followed() -> None:
    # 1 + 2⁻⁷ is a number of bfloat16, its square 1 + 2⁻⁶ + 2⁻¹⁴ is not: the score is rounded to 1 + 2⁻⁶.
    x = 1 + 2.0**-7
    found = record(torch.full((1, 1, 1, 1), x).bfloat16(), torch.tensor([[[[x], [0.0]]]]).bfloat16(), scale=1.0)
    expected = torch.softmax(torch.tensor([1 + 2.0**-6, 0.0]), 0)
    assert found.weights(rounded=True)[0, 0, 0].equal(expected.bfloat16())
    assert found.weights(rounded=True).dtype == torch.bfloat16
    assert float(found.scores()[0, 0, 0, 0]) == x * x


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_models_in_half_precision(name: str, dtype: torch.dtype) -> None:
    """Every family: within the bound, which the differences come near; and bit by bit with the model's rounding."""
    torch.manual_seed(0)
    family = FAMILIES[name]
    model = build(family, "eager").to(dtype)
    inputs = {key: x.to(dtype) if x.is_floating_point() else x for key, x in family.inputs.items()}
    with headwise.watch(model) as seen:
        out = eager(model, **inputs)
    assert any(f"q and k are {str(dtype)[6:]}" in note for note in seen.coverage().notes)
    fields = {path.format(i): (field, i) for path, field, _, _ in family.stacks for i in range(2)}
    assert len(seen) == len(fields)
    for each in seen:
        field, i = fields[each.site.name]
        expected, rows = out[field][i], each.weights().sum(-1) > 0
        off, bound = (each.weights() - expected.float()).abs(), each.rounding_bound()
        assert bool((off <= bound)[rows].all())
        assert float(off[rows].max()) > 0.001 * float(bound[rows].max())
        if name != "bloom":  # which rounds its product and ALiBi together
            assert each.weights(rounded=True)[rows].equal(expected[rows])
            assert each.weights(rows=2, cols=[0, 1], heads=1, rounded=True).equal(
                each.weights(rounded=True)[:, 1:2, 2:3, :2]
            )


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("seed", range(20))
def test_random_calls(seed: int, dtype: torch.dtype) -> None:
    """Large and small scores, in the arithmetic of the dtype alone: each exponential and the sum are rounded too."""
    torch.manual_seed(seed)
    heads, length, width = 4, 9, 2 ** (seed % 5 + 1)
    q, k = (torch.randn(2, n, length, width).mul(2.0 ** (seed % 4 - 1)).to(dtype) for n in (heads, heads // 2))
    bias = torch.randn(1, heads, length, length).to(dtype) if seed % 2 else None
    found = record(q, k, mask=masks.causal(), bias=bias, softcap=4.0 if seed % 3 == 0 else None)
    s = q @ k.repeat_interleave(2, 1).mT * found.scale
    s = s if found.softcap is None else torch.tanh(s / found.softcap) * found.softcap
    s = s if bias is None else s + bias
    s = s.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
    expected = torch.softmax(s, -1, dtype=torch.float32).to(dtype)
    assert found.weights(rounded=True).equal(expected)
    assert bool(((found.weights() - expected.float()).abs() <= found.rounding_bound()).all())
