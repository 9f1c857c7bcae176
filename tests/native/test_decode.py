"""A few queries on many keys: keys cut into parts, read where they are, and in int8."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import headwise
from headwise import masks
from headwise.call import make_call
from headwise.errors import DtypeError, KernelRefused, ShapeError
from headwise.kernels import native
from tests import oracle

K = 1300  # three parts, the last block not full
MASKS: dict[str, masks.Mask | Tensor | None] = {
    "none": None,
    "window": masks.window(700, 0),
    "padding": masks.lengths(torch.tensor([1300, 70])),
    "nothing": masks.lengths(torch.tensor([1300, 0])),
    "any": torch.rand(2, 4, 3, K, generator=torch.Generator().manual_seed(0)) > 0.5,
}
TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def drawn(dtype: torch.dtype, heads: int = 4, key_heads: int = 2, q_len: int = 3, d: int = 64, e: int = 20) -> Any:
    torch.manual_seed(1)
    return [
        torch.randn(2, n, length, width).to(dtype)
        for n, length, width in ((heads, q_len, d), (key_heads, K, d), (key_heads, K, e))
    ]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_output(each_set: str, name: str, dtype: torch.dtype) -> None:
    q, k, v = drawn(dtype)
    found = headwise.attention(q, k, v, mask=MASKS[name], kernel="native")
    expected = oracle.attention(q, k, v, mask=MASKS[name])
    assert (found - expected).abs().max() <= TOLERANCE[dtype]


@pytest.mark.parametrize(
    ("heads", "key_heads", "q_len", "d", "e"),
    [(1, 1, 1, 64, 64), (2, 2, 1, 33, 48), (4, 2, 1, 16, 256), (6, 2, 1, 7, 1), (6, 1, 2, 40, 9), (16, 1, 1, 128, 80)],
)
def test_sizes_and_options(each_set: str, heads: int, key_heads: int, q_len: int, d: int, e: int) -> None:
    q, k, v = drawn(torch.float32, heads, key_heads, q_len, d, e)
    options: dict[str, Any] = {"softcap": 3.0, "sinks": torch.randn(heads), "bias": torch.randn(1, heads, q_len, K)}
    slopes = {"slopes": torch.linspace(-0.003, 0.5, heads)}
    for given in ({}, {"scale": -0.4}, slopes, options):
        found = headwise.attention(q, k, v, mask=masks.causal(), kernel="native", **given)
        expected = oracle.attention(q, k, v, mask=masks.causal(), **given)
        assert (found - expected).abs().max() <= 5e-6


def test_strides(each_set: str) -> None:
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in drawn(torch.float32))
    wide = torch.randn(2, 2, 20, K).mT
    for given in ((q, k, v), (q[..., ::2], k[..., ::2], v), (q, k, wide), (q, k.flip(2), v)):
        found, expected = headwise.attention(*given, kernel="native"), oracle.attention(*given)
        assert (found - expected).abs().max() <= 5e-6


def test_nan_stays_in_the_rows_that_see_it(each_set: str) -> None:
    q, k, v = drawn(torch.float32)
    k[0, 0, 900], v[1, 1, 5] = torch.nan, torch.inf
    seen = masks.causal() & ~masks.lengths(torch.tensor([600, 3]))
    found, expected = headwise.attention(q, k, v, mask=seen, kernel="native"), oracle.attention(q, k, v, mask=seen)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert found.isnan().any()
    assert found.isfinite().any()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_int8_is_what_it_stands_for(each_set: str, name: str, dtype: torch.dtype) -> None:
    q, k, v = drawn(dtype)
    small_k, small_v = headwise.Int8.of(k), headwise.Int8.of(v)
    assert headwise.plan(q, small_k, small_v, mask=MASKS[name]).kernel == "native"
    found = headwise.attention(q, small_k, small_v, mask=MASKS[name])
    stands_for = [(x.values.float() * x.scale[..., None]) for x in (small_k, small_v)]
    assert (found - oracle.attention(q, *stands_for, mask=MASKS[name])).abs().max() <= TOLERANCE[dtype]
    assert (found - oracle.attention(q, k, v, mask=MASKS[name])).abs().max() <= 0.03


def test_int8_where_the_kernel_cannot_read_it() -> None:
    q, k, v = drawn(torch.float32)
    small = [headwise.Int8.of(x) for x in (k, v)]
    known = [x.dequantized() for x in small]
    for kernel in ("sdpa", "reference"):
        found = headwise.attention(q, *small, kernel=kernel)
        torch.testing.assert_close(found, headwise.attention(q, *known, kernel=kernel))
    out, record = headwise.attention(q, *small, record=True)
    torch.testing.assert_close(record.weights(), headwise.attention(q, *known, record=True)[1].weights())
    long = torch.randn(2, 4, 30, 64)
    torch.testing.assert_close(headwise.attention(long, *small), headwise.attention(long, *known))
    torch.testing.assert_close(headwise.attention(q, small[0], known[1]), out)
    call = make_call(long, *small)
    assert "int8 for up to 16 queries" in str(native.refuse(call))
    with pytest.raises(KernelRefused, match="is for one query"):
        headwise.attention(q, *small, kernel="decode")


def test_int8_rounds_each_token_by_itself() -> None:
    x = torch.tensor([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0], [1e-3, 0.0, 127e-3]])[None, None]
    small = headwise.Int8.of(x)
    assert small.values[0, 0].tolist() == [[64, -127, 32], [0, 0, 0], [1, 0, 127]]
    torch.testing.assert_close(small.scale[0, 0], torch.tensor([2 / 127, 0.0, 1e-3]))
    assert (small.dequantized() - x).abs().max() <= 1 / 127
    assert headwise.Int8.of(torch.tensor([[[[torch.nan, 1.0], [2.0, 1.0]]]])).dequantized()[0, 0].isnan().tolist() == [
        [True, True],
        [False, False],
    ]
    assert headwise.Int8.of(x.bfloat16()).dequantized().dtype == torch.bfloat16


def test_int8_refuses_what_does_not_fit() -> None:
    with pytest.raises(DtypeError, match="expected a float tensor"):
        headwise.Int8.of(torch.ones(1, 1, 2, 3, dtype=torch.int64))
    with pytest.raises(DtypeError, match="int8 values, a float32 scale"):
        headwise.Int8(torch.ones(1, 1, 2, 3), torch.ones(1, 1, 2))
    with pytest.raises(ShapeError, match="scale"):
        headwise.Int8(torch.ones(1, 1, 2, 3, dtype=torch.int8), torch.ones(1, 1, 3))
    q = torch.randn(1, 1, 1, 3)
    with pytest.raises(DtypeError, match="must be float16"):
        headwise.attention(q, *[torch.ones(1, 1, 2, 3, dtype=torch.int8)] * 2)
