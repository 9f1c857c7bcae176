"""Head importance against the derivative by a factor on each head's output, which is how the paper defines it."""

from __future__ import annotations

import pytest
import torch

import headwise
from headwise import masks
from headwise.analyses import head_importance
from headwise.errors import ArgumentError, RecordError
from tests.analyses.dense import Layer, by_hand, tiny_encoder, tiny_records, weights_of

close = torch.testing.assert_close


def dense(layers: list[Layer], absolute: str) -> torch.Tensor:
    share = [torch.einsum("bhqe,bhqe->bhq", layer.output, layer.output_grad) for layer in layers]
    return torch.stack([(s.abs().sum(-1) if absolute == "token" else s.sum(-1).abs()).mean(0) for s in share])


def test_two_tokens_by_hand() -> None:
    # A = [[1/2, 1/2], [1/4, 3/4]], v = (4, 8): O = (6, 7). With dO = (1, -2) the sum is 6 - 14, of absolutes 6 + 14.
    seen = by_hand()
    seen.extras.v = torch.tensor([4.0, 8.0], dtype=torch.float64)[None, None, :, None]
    seen.extras.grad = torch.tensor([1.0, -2.0], dtype=torch.float64)[None, None, :, None]
    close(head_importance([seen]), torch.tensor([[8.0]], dtype=torch.float64))
    close(head_importance([seen], absolute="token"), torch.tensor([[20.0]], dtype=torch.float64))
    close(head_importance([seen], normalise=True), torch.tensor([[1.0]], dtype=torch.float64))


@pytest.mark.parametrize("mask", [None, masks.causal(), masks.lengths([7, 3])], ids=["full", "causal", "padding"])
@pytest.mark.parametrize("absolute", ["example", "token"])
def test_equals_outputs_and_gradients_of_autograd(absolute: str, mask: masks.Mask | None, block_bytes: int) -> None:
    layers = tiny_encoder(n_layers=3, mask=mask)
    records = [layer.record for layer in layers]
    expected = dense(layers, absolute)
    close(head_importance(records, absolute=absolute), expected)  # type: ignore[arg-type]
    normalised = head_importance(records, absolute=absolute, normalise=True)  # type: ignore[arg-type]
    close(normalised, expected / expected.square().sum(1, keepdim=True).sqrt())


def test_is_the_derivative_by_a_factor_on_the_head() -> None:
    q, k, v = (torch.randn(3, h, 6, 4, dtype=torch.float64) for h in (4, 2, 2))
    factor = torch.ones(3, 4, dtype=torch.float64, requires_grad=True)  # ξ of each example
    output = torch.einsum("bhqk,bhke->bhqe", weights_of(q, k), v.repeat_interleave(2, dim=1))
    output.requires_grad_()
    torch.sin(output * factor[:, :, None, None]).cumsum(-1).square().sum().backward()
    _, seen = headwise.attention(q, k, v, record=True)
    seen.extras.v, seen.extras.grad = v, output.grad
    close(head_importance(seen)[0], factor.grad.abs().mean(0))


def test_cross_attention_counts_and_nan_behind_the_mask_does_not() -> None:
    q, k, v = torch.randn(2, 4, 3, 4), torch.randn(2, 2, 5, 4), torch.randn(2, 2, 5, 4)
    output, seen = headwise.attention(q, k, v, mask=masks.lengths([5, 2]), record=True)
    seen.extras.v, seen.extras.grad = v.clone(), torch.randn_like(output)
    expected = (output * seen.grad).sum((2, 3)).abs().mean(0)
    v = seen.v.clone()
    v[1, :, 2:] = float("inf")
    seen.extras.v = v
    close(head_importance([seen]), expected[None])


def test_a_key_that_one_head_of_its_group_may_see_is_not_left_out() -> None:
    by_head = torch.ones(4, 3, 3, dtype=torch.bool)
    by_head[0, :, 1], by_head[2:, :, 2] = False, False  # heads 0 and 1 share their keys, as do 2 and 3
    q, k, v = torch.randn(1, 4, 3, 4), torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4)
    output, seen = headwise.attention(q, k, v, mask=masks.from_tensor(by_head), record=True)
    seen.extras.v, seen.extras.grad = v.clone(), torch.randn_like(output)
    v = seen.v.clone()
    v[:, 1, 2] = float("nan")  # nobody may see this one
    seen.extras.v = v
    close(head_importance(seen), (output * seen.grad).sum((2, 3)).abs())


def test_bad_arguments() -> None:
    layers = tiny_records(2, 5)
    with pytest.raises(ArgumentError, match=r"head_importance needs at least one record"):
        head_importance([])
    with pytest.raises(ArgumentError, match=r'absolute must be "example" or "token"\.'):
        head_importance(layers, absolute="batch")  # type: ignore[arg-type]
    with pytest.raises(RecordError, match=r"layers of one number of heads. Received: H=\[4, 4, 2\]"):
        head_importance([*layers, *tiny_records(1, 5, heads=2)])
    layers[1].extras.grad = None
    with pytest.raises(RecordError, match=r"output gradients.*gradients=True"):
        head_importance(layers)
    layers[1].dropout = 0.1
    with pytest.raises(RecordError, match=r"Received: record 1, which dropped 0\.1 of them. Call model.eval\(\) first"):
        head_importance(layers)


def test_a_layer_without_any_importance_stays_zero() -> None:
    layers = tiny_records(1, 5)
    layers[0].extras.grad = torch.zeros(1, 4, 5, 4)
    assert torch.equal(head_importance(layers, normalise=True), torch.zeros(1, 4))
