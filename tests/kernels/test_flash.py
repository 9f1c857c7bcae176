"""Where torch lacks its private operators, public functions give the same output, log-sum-exp and gradients."""

from __future__ import annotations

import pytest
import torch

import headwise
from headwise import masks
from headwise.kernels import flash, fused
from headwise.softmax import finite

WITH = flash.find()


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> tuple[flash.Forward, flash.Backward]:
    """What is found in a torch that has no operators of these names."""
    monkeypatch.setattr(flash, "NAME", "_an_operator_that_torch_does_not_have")
    found = flash.find()
    for name, function in zip(("_forward", "_backward"), found, strict=True):
        monkeypatch.setattr(fused, name, function)
    return found


def test_by_hand(without: tuple[flash.Forward, flash.Backward]) -> None:
    forward, _ = without
    q = torch.zeros(1, 1, 2, 1)
    k, v = torch.ones(1, 1, 2, 1), torch.tensor([[[[1.0], [3.0]]]])
    out, lse = forward(q, k, v, 0.0, True, attn_mask=None, scale=1.0)
    assert out.flatten().tolist() == [1.0, 2.0]
    torch.testing.assert_close(lse.flatten(), torch.tensor([1.0, 2.0]).log())


@pytest.mark.parametrize(("dtype", "far"), [(torch.float64, 1e-7), (torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("is_causal", [False, True], ids=["mask", "causal"])
def test_it_agrees_with_the_operators(
    dtype: torch.dtype, far: float, is_causal: bool, without: tuple[flash.Forward, flash.Backward]
) -> None:
    operator, its_backward = WITH
    q, k, v, d_out = (torch.randn(2, 4, 6, 8, dtype=dtype) for _ in range(4))
    mask = None
    if not is_causal:
        mask = torch.rand(2, 1, 6, 6, dtype=dtype).masked_fill(torch.rand(2, 1, 6, 6) < 0.3, -torch.inf)
        mask[0, 0, 2] = -torch.inf
    settings = {"attn_mask": mask, "scale": 0.7}
    expected, expected_lse = operator(q, k, v, 0.0, is_causal, **settings)
    out, lse = without[0](q, k, v, 0.0, is_causal, **settings)
    assert (out.dtype, lse.dtype) == (expected.dtype, expected_lse.dtype)
    torch.testing.assert_close(out, expected, rtol=far, atol=far)
    torch.testing.assert_close(finite(lse), expected_lse, rtol=far, atol=far)  # the operator gives an empty row 0
    given = (d_out, q, k, v, expected, expected_lse, 0.0, is_causal)
    for found, right in zip(without[1](*given, **settings), its_backward(*given, **settings), strict=True):
        assert found.dtype == right.dtype
        torch.testing.assert_close(found, right, rtol=far, atol=far)


@pytest.mark.parametrize("kernel", ["tiled", "sdpa"])
def test_a_call_without_the_operators(kernel: str, without: tuple[flash.Forward, flash.Backward]) -> None:
    # Two query heads share a key head; documents of 40 make several tiles, and the padding makes empty rows.
    mask = masks.documents(torch.arange(120) // 40) & masks.window(9, 2) & masks.lengths([110, 120])
    inputs = [torch.randn(2, heads, 120, 8, requires_grad=True) for heads in (4, 2, 2)]
    bias = torch.randn(4, 120, 120)
    found, expected = (headwise.attention(*inputs, mask=mask, bias=bias, kernel=name) for name in (kernel, "reference"))
    torch.testing.assert_close(found, expected)
    d_out = torch.randn_like(expected)
    for grad, right in zip(*(torch.autograd.grad(x, inputs, d_out) for x in (found, expected)), strict=True):
        torch.testing.assert_close(grad, right)
