"""Linear layers of packed weights against their definition in float64, on each instruction set."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, relu, silu

from headwise.errors import ArgumentError, ShapeError
from headwise.native.library import instruction_set, instruction_sets, use
from headwise.native.linear import Dtype, Encoder, Layer, linear, norm_of, pack

ACTIVATIONS: dict[str | None, Callable[[Tensor], Tensor]] = {
    None: lambda x: x,
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": partial(gelu, approximate="tanh"),
    "silu": silu,
}
TOLERANCE: dict[Dtype, float] = {"float32": 5e-6, "bfloat16": 0.03, "int8": 0.06}
SIZES = [(1, 384, 64), (7, 70, 65), (100, 33, 130), (0, 5, 7)]  # T, K, N: no multiples of blocks, one row, none


def made(tokens: int, inputs: int, outputs: int) -> tuple[Tensor, Tensor, Tensor]:
    draws = torch.Generator().manual_seed(tokens)
    x, w, b = (torch.randn(size, generator=draws) for size in ((tokens, inputs), (outputs, inputs), (outputs,)))
    return x, w / inputs**0.5, b


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_linear_layers_and_what_follows_them(each_set: str, size: tuple[int, int, int], dtype: Dtype) -> None:
    x, w, b = made(*size)
    weights = pack(w, b, dtype)
    exact = x.double() @ w.double().T + b.double()
    for name, activation in ACTIVATIONS.items():
        found = linear(x, weights, name)
        torch.testing.assert_close(found.double(), activation(exact), atol=TOLERANCE[dtype], rtol=0.0, msg=str(name))
    residual, scale, shift = torch.randn(exact.shape), torch.rand(size[2]), torch.rand(size[2])
    found = linear(x, weights, residual=residual, norm=norm_of(scale, shift, size[2], 1e-6))
    normed = layer_norm(residual.double() + exact, size[2:], scale.double(), shift.double(), 1e-6)
    torch.testing.assert_close(found.double(), normed, atol=TOLERANCE[dtype], rtol=0.0)


def test_gelu_is_exact(each_set: str) -> None:
    x = torch.linspace(-9, 9, 5001)[:, None]
    found = linear(x, pack(torch.ones(1, 1)), "gelu")
    torch.testing.assert_close(found.double(), gelu(x.double()), atol=1.5e-6, rtol=0.0)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_nan_reaches_its_own_row_alone(each_set: str, dtype: Dtype) -> None:
    x, w, b = made(9, 70, 65)
    x[4, 3] = torch.nan
    for name in ACTIVATIONS:
        found = linear(x, pack(w, b, dtype), name)
        assert found.isnan().any(1).tolist() == [row == 4 for row in range(9)], name


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_threads_change_no_bit(dtype: Dtype) -> None:
    before = torch.get_num_threads()
    for tokens in (3, 500):
        x, w, b = made(tokens, 64, 130)
        weights, found = pack(w, b, dtype), []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(linear(x, weights, "gelu"))
        torch.set_num_threads(before)
        assert torch.equal(found[0], found[1])
        assert torch.equal(found[0], found[2])


def test_int8_is_the_nearest_number_of_each_row(each_set: str) -> None:
    """A row of x and an output's weights each have a scale of their own: small rows lose nothing beside large ones."""
    x, w, _ = made(6, 128, 64)
    size = torch.tensor([1e-6, 1.0, 1e6, 1e-3, 0.0, 10.0])[:, None]
    found = linear(x * size, pack(w, torch.zeros(64), "int8"))
    error = (found / size - x @ w.T)[[0, 1, 2, 3, 5]].abs().max()
    assert error < 0.06
    assert found[4].abs().max() == 0.0


def test_what_does_not_fit_is_refused() -> None:
    x, w, b = made(4, 8, 6)
    with pytest.raises(ShapeError, match=r"x: expected \[T, 8\]"):
        linear(x[:, :5], pack(w, b))
    with pytest.raises(ShapeError, match="residual"):
        linear(x, pack(w, b), residual=x, norm=norm_of(None, None, 6, 1e-5))


def test_texts_out_of_order_are_refused(layers: list[Layer]) -> None:
    encoder = Encoder(layers, 2, "gelu", 0.5)
    with pytest.raises(ArgumentError, match="texts do not follow one another"):
        encoder(torch.zeros(5, 8), torch.tensor([0, 4, 3, 5]))
    with pytest.raises(ArgumentError, match="texts do not follow one another"):
        encoder(torch.zeros(5, 8), torch.tensor([0, 4]))


@pytest.fixture
def layers() -> list[Layer]:
    qkv, out, up, down = (pack(torch.zeros(*size)) for size in ((24, 8), (8, 8), (16, 8), (8, 16)))
    norm = norm_of(None, None, 8, 1e-5)
    return [Layer(qkv, out, up, down, norm, norm)]


def test_weights_that_are_packed_for_another_instruction_set_are_an_error() -> None:
    before = instruction_set()
    assert before is not None
    packed = pack(torch.randn(5, 7))
    try:
        for name in instruction_sets():
            use(name)
            if pack(torch.randn(5, 7)).data.shape != packed.data.shape:
                with pytest.raises(ArgumentError, match="packed for another instruction set"):
                    linear(torch.randn(2, 7), packed)
            else:
                assert linear(torch.randn(2, 7), packed).shape == (2, 5)
    finally:
        use(before)
