"""Calls at the edges of the definition, on every kernel, with outputs and gradients that a reader can check.

One example and one head of width 1, unless said otherwise; queries and keys of 0 make all scores 0.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise
from headwise import masks

NAN, INF, LOW = math.nan, math.inf, torch.finfo(torch.float32).min
LOG2, LOG3 = math.log(2.0), math.log(3.0)
EVERY = masks.window(100, 100)  # all pairs: `tiled` refuses calls without a mask

trained = pytest.mark.parametrize("kernel", ["auto", "sdpa", "tiled", "reference", "native"])
every = pytest.mark.parametrize("kernel", ["auto", "sdpa", "tiled", "flex", "reference", "native"])


def column(*numbers: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """[1, 1, n, 1]"""
    return torch.tensor(numbers, dtype=dtype)[None, None, :, None]


def attend(values: list[float], **options: Any) -> list[float]:
    """The outputs of as many queries as values, all scores 0."""
    zeros = torch.zeros(1, 1, len(values), 1)
    out: list[float] = headwise.attention(zeros, zeros, column(*values), **options)[0, 0, :, 0].tolist()
    return out


@trained
def test_gradients_of_rows_that_a_bias_pushes_down_as_a_whole(kernel: str) -> None:
    """Their log-sum-exp, finfo.min + log 4, rounds to finfo.min: exp(s - lse) would be 1 for each of four keys."""
    q, v = torch.zeros(1, 1, 4, 1), column(1.0, 2.0, 3.0, 4.0).requires_grad_()
    out = headwise.attention(q, q, v, mask=EVERY, bias=torch.full((4, 4), LOW), kernel=kernel)
    assert out.flatten().tolist() == [2.5] * 4
    (d_v,) = torch.autograd.grad(out.sum(), v)
    assert d_v.flatten().tolist() == [1.0] * 4  # 4 queries with a weight of 1/4


@every
@pytest.mark.parametrize(("scale", "second"), [(-1.0, 5.0), (0.0, 6.0), (1.0, 7.0)])
def test_a_scale_of_zero_or_less_with_a_causal_mask(kernel: str, scale: float, second: float) -> None:
    out = headwise.attention(
        column(1.0, 1.0), column(0.0, LOG3), column(4.0, 8.0), mask=masks.causal(), scale=scale, kernel=kernel
    )
    assert out.flatten().tolist() == pytest.approx([4.0, second], rel=1e-6)  # weights 3/4 and 1/4, 1/2 and 1/2, or so


@every
def test_a_sink_of_minus_inf_is_no_sink_beside_an_empty_row_too(kernel: str) -> None:
    options = {"mask": masks.causal(offset=-1), "sinks": torch.tensor([-INF]), "kernel": kernel}
    assert attend([4.0, 8.0, 6.0], **options) == [0.0, 4.0, 6.0]


@trained
def test_gradients_beside_a_sink_of_minus_inf_and_an_empty_row(kernel: str) -> None:
    q, v, sinks = torch.zeros(1, 1, 3, 1), column(4.0, 8.0, 6.0).requires_grad_(), torch.tensor([-INF]).requires_grad_()
    out = headwise.attention(q, q, v, mask=masks.causal(offset=-1), sinks=sinks, kernel=kernel)
    d_v, d_sinks = torch.autograd.grad(out.sum(), [v, sinks])
    assert (d_v.flatten().tolist(), d_sinks.tolist()) == ([1.5, 0.5, 0.0], [0.0])


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_with_a_float32_bias_that_forbids(kernel: str, dtype: torch.dtype) -> None:
    """finfo.min of float32 is -inf in float16: a row of it would be empty."""
    q, v = torch.zeros(1, 1, 4, 1, dtype=dtype), column(4.0, 8.0, dtype=dtype)
    bias = torch.tensor([[LOW, 0.0], [LOW, LOW], [-INF, 0.0], [-INF, -INF]])
    out = headwise.attention(q, q[:, :, :2], v, mask=EVERY, bias=bias, kernel=kernel)
    assert out.flatten().tolist() == [8.0, 6.0, 8.0, 0.0]


@every
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("how", ["mask", "bias"])
def test_a_value_that_is_not_finite_reaches_only_queries_that_see_it(kernel: str, bad: float, how: str) -> None:
    forbids = torch.full((3, 3), -INF).triu(1)
    options = {"mask": masks.causal()} if how == "mask" else {"mask": EVERY, "bias": forbids}
    first, second, third = attend([4.0, 8.0, bad], kernel=kernel, **options)
    assert (first, second) == (4.0, 6.0)
    assert not math.isfinite(third)


@every
def test_a_key_of_nan_reaches_only_queries_that_see_it(kernel: str) -> None:
    q, k, v = column(1.0, 1.0, 1.0), column(0.0, LOG3, NAN), column(4.0, 8.0, 6.0)
    out = headwise.attention(q, k, v, mask=masks.causal(), kernel=kernel).flatten()
    assert out[:2].tolist() == pytest.approx([4.0, 7.0], rel=1e-6)
    assert out[2].isnan()


def test_a_key_of_nan_that_more_rows_see_than_are_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwise.kernels.exact.CELLS", 6)  # two rows of three keys
    q, k = column(*[1.0] * 5), column(0.0, 0.0, NAN)
    assert headwise.attention(q, k, k, kernel="sdpa").isnan().all()
    forbids = torch.tensor([[0.0, 0.0, -INF]])  # one row for all queries
    assert headwise.attention(q, k, k, bias=forbids, kernel="sdpa").flatten().tolist() == [0.0] * 5


@trained
def test_gradients_of_queries_that_do_not_see_nan(kernel: str) -> None:
    """Of the first two outputs alone; NaN times a gradient of 0 would be NaN."""
    k, v = torch.zeros(1, 1, 3, 1), column(4.0, 8.0, NAN).requires_grad_()
    q = torch.zeros(1, 1, 3, 1).requires_grad_()
    out = headwise.attention(q, k, v, mask=masks.causal(), kernel=kernel)
    d_q, d_v = torch.autograd.grad(out[:, :, :2].sum(), [q, v])
    assert d_q[0, 0, :2, 0].tolist() == [0.0, 0.0]  # all keys are 0
    assert d_v.flatten().tolist() == [1.5, 0.5, 0.0]


@every
@pytest.mark.parametrize("scale", [None, 0.0, -1.0])
def test_nan_in_padding_of_packed_documents(kernel: str, scale: float | None) -> None:
    ids = torch.tensor([-1] + [0] * 15 + [1] * 14 + [-1] * 3)
    real = (ids >= 0).float()
    q, k, v = torch.randn(1, 2, 33, 1), torch.randn(1, 1, 33, 1), torch.ones(1, 1, 33, 1)
    k[:, :, ids < 0] = v[:, :, ids < 0] = NAN
    out = headwise.attention(q, k, v, mask=masks.documents(ids) & masks.causal(0), scale=scale, kernel=kernel)
    torch.testing.assert_close(out, real[None, None, :, None].expand(1, 2, 33, 1))


@trained
@pytest.mark.parametrize("bias_of_row", [0.5, -1e9, LOW])
def test_one_key_has_all_the_weight(kernel: str, bias_of_row: float) -> None:
    q, v = column(1.0, -2.0, 3.0, dtype=torch.bfloat16), column(1.375, dtype=torch.bfloat16).requires_grad_()
    bias = torch.tensor([[0.0], [bias_of_row], [bias_of_row]])
    out = headwise.attention(q, q[:, :, :1], v, mask=EVERY, bias=bias, scale=-1.0, kernel=kernel)
    assert out.flatten().tolist() == [1.375] * 3
    (d_v,) = torch.autograd.grad(out.sum(), v)
    assert d_v.item() == 3.0


def test_a_record_s_scores_hold_a_bias_of_one_number_a_row() -> None:
    q, k = column(1.0, 1.0), column(0.0, LOG2, 2 * LOG2)
    bias = torch.tensor([[0.0], [math.log(5.0)]])
    for sinks, more in ((None, 0.0), (torch.tensor([0.0]), 1.0)):
        _, record = headwise.attention(q, k, k, bias=bias, sinks=sinks, record=True)
        expected = torch.tensor([[1.0, 2.0, 4.0], [5.0, 10.0, 20.0]]).log()
        torch.testing.assert_close(record.scores()[0, 0], expected)
        torch.testing.assert_close(record.lse[0, 0], torch.tensor([7.0 + more, 35.0 + more]).log())


def test_a_record_s_weights_beside_rows_that_a_bias_pushes_down() -> None:
    q, k = column(1.0, 1.0), column(0.0, LOG2, 2 * LOG2)
    _, record = headwise.attention(q, k, k, bias=torch.tensor([[LOW], [0.0]]), record=True)
    for cols in (0, 1, 2):
        found = record.weights(cols=cols).flatten().tolist()
        assert found == pytest.approx([1 / 3, 2**cols / 7], rel=1e-6)
    assert record.weights(rows=0, cols=2).item() == pytest.approx(1 / 3)
