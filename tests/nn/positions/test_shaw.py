"""Shaw's relative positions: by hand, against the equations written out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from headwise import attention
from headwise.errors import ArgumentError
from headwise.nn.positions import ShawRelative


def test_bias_by_hand() -> None:
    scheme = ShawRelative(1, max_distance=1)
    with torch.no_grad():
        scheme.distance_embedding.weight.copy_(torch.tensor([[-1.0], [0.0], [1.0]]))
    q = torch.tensor([2.0, 4.0, 6.0]).view(1, 1, 3, 1)
    # half of q_i times the sign of j - i
    expected = torch.tensor([[0.0, 1, 1], [-2, 0, 2], [-3, -3, 0]])
    assert torch.equal(scheme.bias(q, torch.arange(3), torch.arange(3), scale=0.5)[0, 0], expected)


def test_values_by_hand() -> None:
    scheme = ShawRelative(4, max_distance=1, values=True, value_dim=1)
    with torch.no_grad():
        scheme.value_embedding.weight.copy_(torch.tensor([[100.0], [10.0], [1.0]]))
    weights = torch.tensor([[0.2, 0.3, 0.5], [0.1, 0.4, 0.5], [0.25, 0.25, 0.5]]).view(1, 1, 3, 3)
    # the row's weights before, at and after the query
    expected = torch.tensor([2 + 0.8, 10 + 4 + 0.5, 50 + 5]).view(1, 1, 3, 1)
    torch.testing.assert_close(scheme.values(weights, torch.arange(3), torch.arange(3)), expected)


def equations(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a_key: Tensor,
    a_value: Tensor,
    sides: tuple[int, int],
    q_ids: Tensor,
    k_ids: Tensor,
) -> Tensor:
    """Equations 3 and 4, pair by pair."""
    batch, heads, q_len, width = q.shape
    out = torch.zeros(batch, heads, q_len, v.shape[-1], dtype=q.dtype)
    for b in range(batch):
        for h in range(heads):
            for i in range(q_len):
                rows = [
                    min(max(int(k_ids[b, j] - q_ids[b, i]), -sides[0]), sides[1]) + sides[0] for j in range(k.shape[2])
                ]
                e = torch.stack([q[b, h, i] @ (k[b, h, j] + a_key[row]) / width**0.5 for j, row in enumerate(rows)])
                alpha = e.softmax(0)
                out[b, h, i] = sum(alpha[j] * (v[b, h, j] + a_value[row]) for j, row in enumerate(rows))
    return out


@given(st.integers(1, 3), st.integers(0, 3), st.integers(1, 4), st.integers(0, 3), st.integers(0, 3))
def test_it_is_equations_3_and_4(left: int, right: int, q_len: int, past: int, padding: int) -> None:
    scheme = ShawRelative(4, (left, right), values=True, value_dim=3).double()
    k_len = q_len + past
    q, k = torch.randn(2, 2, q_len, 4, dtype=torch.float64), torch.randn(2, 2, k_len, 4, dtype=torch.float64)
    v = torch.randn(2, 2, k_len, 3, dtype=torch.float64)
    key_ids = torch.stack([torch.arange(k_len), (torch.arange(k_len) - padding).clamp(min=0)])
    query_ids = key_ids[:, past:]
    bias = scheme.bias(q, query_ids, key_ids)
    out, record = attention(q, k, v, bias=bias, record=True)
    added = scheme.values(record.weights().to(q.dtype), query_ids, key_ids)
    tables = scheme.distance_embedding.weight, scheme.value_embedding.weight
    expected = equations(q, k, v, *tables, (left, right), query_ids, key_ids)
    torch.testing.assert_close(out + added, expected, atol=1e-6, rtol=0)


def test_both_tables_learn() -> None:
    scheme = ShawRelative(4, 2, values=True)
    q, ids = torch.randn(1, 2, 5, 4), torch.arange(5)
    weights = scheme.bias(q, ids, ids).softmax(-1)
    scheme.values(weights, ids, ids).square().sum().backward()
    for parameter in scheme.parameters():
        assert parameter.grad is not None
        assert (parameter.grad != 0).all()


def test_under_autocast_and_in_bfloat16_the_bias_is_float32() -> None:
    scheme, q, ids = ShawRelative(8, 3), torch.randn(1, 2, 4, 8), torch.arange(4)
    exact = scheme.bias(q, ids, ids)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(scheme.bias(q, ids, ids), exact)
    low = scheme.to(torch.bfloat16).bias(q.bfloat16(), ids, ids)
    assert low.dtype == torch.float32
    torch.testing.assert_close(low, exact, atol=0.02, rtol=0.02)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 4), "head_dim: expected a whole number of at least 1. Received: head_dim=0"),
        ((8, 0), "max_distance: expected a whole number of at least 1. Received: max_distance=0"),
        ((8, (4, -1)), "max_distance: expected a whole number of at least 0. Received: max_distance=-1"),
        ((8, 4, "both"), "values: expected one of False, True. Received: values='both'"),
        ((8, (1, 2, 3)), r"max_distance: expected an int or \(left, right\)"),
    ],
)
def test_options_that_make_no_sense_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        ShawRelative(*arguments)


def test_what_does_not_belong_together_is_refused() -> None:
    with pytest.raises(ArgumentError, match="value_dim: expected values=True"):
        ShawRelative(8, 4, value_dim=8)
    with pytest.raises(ArgumentError, match=r"head_dim=8. Received: head_dim=16"):
        ShawRelative(8, 4).check(2, 16)


def test_state_and_description() -> None:
    assert list(ShawRelative(8, 4).state_dict()) == ["distance_embedding.weight"]
    assert not ShawRelative(8, 4).uses_values
    assert ShawRelative(8, 4).values(torch.ones(1, 1, 2, 2), torch.arange(2), torch.arange(2)) is None
    both = ShawRelative(4, (4, 2), values=True)
    assert both.uses_values
    assert list(both.state_dict()) == ["distance_embedding.weight", "value_embedding.weight"]
    assert "4, max_distance=(4, 2), values=True" in repr(both)
    before = both.value_embedding.weight.clone()
    both.reset_parameters()
    assert not torch.equal(both.value_embedding.weight, before)
