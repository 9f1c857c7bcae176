"""The feed-forward network and stochastic depth: numbers by hand, the same as in PyTorch, dropout, bad input."""

from __future__ import annotations

import math
from typing import Any

import pytest

from headwise import nn
from headwise.errors import ArgumentError, DtypeError
from headwise.keras import DropPath, FeedForward
from tests.keras.backend import array, tensor
from tests.keras.parity import close, draw

SIGMOID = 1 / (1 + math.exp(-1))
TANH = 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * 1.044715))


@pytest.mark.parametrize(
    ("activation", "at_one"),
    {"relu": 1.0, "gelu": 0.8413447, "gelu_tanh": TANH, "silu": SIGMOID}.items(),
)
def test_plain_by_hand(activation: Any, at_one: float) -> None:
    layer = FeedForward(1, 2, activation=activation, bias=False)
    layer.build()
    layer.up.kernel.assign([[1.0, 10.0]])  # of 1: 1 and 10, which each activation leaves almost as it is
    layer.down.kernel.assign([[2.0], [1.0]])
    close(layer(tensor([[1.0]])), [[2 * at_one + 10]], 1e-3 if activation == "silu" else 1e-6)


def test_gated_by_hand() -> None:
    layer: Any = FeedForward(1, 1, activation="swiglu")
    layer.build()
    for part, kernel, bias in ((layer.gate, 1.0, 0.0), (layer.up, 3.0, 1.0), (layer.down, 2.0, 0.5)):
        part.kernel.assign([[kernel]])
        part.bias.assign([bias])
    close(layer(tensor([[1.0]])), [[2 * SIGMOID * 4 + 0.5]], 1e-6)


def test_widths() -> None:
    assert FeedForward(6).hidden_dim == 24
    assert (
        FeedForward(100, activation="swiglu").hidden_dim == nn.FeedForward(100, activation="swiglu").hidden_dim == 320
    )


def test_any_leading_dimensions() -> None:
    layer, x = FeedForward(6, 8), draw(2, 3, 5, 6)
    close(array(layer(tensor(x)))[:, 1], array(layer(tensor(x[:, 1]))))


@pytest.mark.every_backend
def test_drop_path_drops_whole_examples() -> None:
    x = draw(400, 3, 2)
    layer = DropPath(0.25, seed=0)
    close(layer(tensor(x)), x, 0)
    found = array(layer(tensor(x), training=True))
    dropped = (found == 0).all((1, 2))
    close(found[~dropped], x[~dropped] / 0.75, 1e-6)
    assert 70 < dropped.sum() < 130
    close(DropPath(0.25, seed=0)(tensor(x), training=True), found, 0)
    assert (array(layer(tensor(x), training=True)) != found).any()
    close(DropPath()(tensor(x), training=True), x, 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FeedForward(0), "dim: expected a whole number of at least 1"),
        (lambda: FeedForward(4, 0), "hidden_dim"),
        (lambda: FeedForward(4, activation="tanh"), "activation: expected one of 'relu'"),
        (lambda: FeedForward(4, dropout=1.0), "dropout"),
        (lambda: DropPath(1.0), "probability"),
    ],
)
def test_bad_options(make: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


def test_bad_input() -> None:
    with pytest.raises(DtypeError, match="inputs: expected a tensor"):
        FeedForward(4)([tensor(draw(2, 4))])
