"""Sinusoidal and learned positions in Keras: exact at far positions too, and no position beyond the table."""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest
import torch

from headwise.errors import ArgumentError, DtypeError
from headwise.keras.positions import Learned, Sinusoidal
from headwise.nn import positions as torch_positions
from tests.keras.backend import array, cases, tensor, weight_gradients
from tests.keras.parity import copy_weights


@pytest.mark.every_backend
def test_sinusoidal_by_hand() -> None:
    got = array(Sinusoidal(4, base=100.0)(tensor(np.array([[0, 3]]))))
    assert got.shape == (1, 2, 4)
    want = [[0, 1, 0, 1], [math.sin(3), math.cos(3), math.sin(0.3), math.cos(0.3)]]
    np.testing.assert_allclose(got[0], want, atol=1e-6)
    halves = array(Sinusoidal(4, base=100.0, interleaved=False)(tensor(np.array([3]))))
    np.testing.assert_allclose(halves, [[math.sin(3), math.sin(0.3), math.cos(3), math.cos(0.3)]], atol=1e-6)


@pytest.mark.parametrize("first", cases([-700, 0, 9500, 1_000_000, 2**31 - 1000], -700, 2147482648))
def test_sinusoidal_is_exact_at_far_positions(first: int) -> None:
    ids = torch.arange(first, first + 900, 7)
    want = torch_positions.Sinusoidal(64)(ids)
    np.testing.assert_allclose(array(Sinusoidal(64)(tensor(ids.int()))), want, atol=2e-6)


def test_sinusoidal_has_the_dtype_of_its_policy_but_not_its_precision() -> None:
    got = Sinusoidal(64, dtype="mixed_bfloat16")(tensor(np.array([9999])))
    assert keras.backend.standardize_dtype(got.dtype) == "bfloat16"
    want = torch_positions.Sinusoidal(64)(torch.tensor([9999]))
    np.testing.assert_allclose(array(keras.ops.cast(got, "float32")), want, atol=2**-8)


@pytest.mark.every_backend
def test_learned_is_the_twins_table() -> None:
    twin, layer = torch_positions.Learned(9, 4), Learned(9, 4)
    copy_weights(twin, layer)
    ids, weight = torch.tensor([[0, 8, 1], [1, 1, 2]]), torch.randn(2, 3, 4)
    assert np.array_equal(array(layer(tensor(ids))), twin(ids).detach())
    assert np.array_equal(array(layer(tensor(ids[0]))), twin(ids[0]).detach())
    (twin(ids) * weight).sum().backward()
    got = weight_gradients(lambda: keras.ops.sum(layer(tensor(ids)) * tensor(weight)), layer)
    np.testing.assert_allclose(got["weight"], twin.weight.grad, atol=1e-4)


def test_learned_is_drawn_with_its_deviation() -> None:
    layer = Learned(100, 100, std=0.5)
    layer.build()
    assert float(np.std(array(layer.weight))) == pytest.approx(0.5, rel=0.05)


@pytest.mark.every_backend
@pytest.mark.parametrize("layer", [Sinusoidal(4), Learned(9, 4)], ids=["sinusoidal", "learned"])
def test_inside_a_model_of_unknown_length(layer: keras.layers.Layer) -> None:
    ids = keras.Input((None,), dtype="int32")
    out = layer(ids)
    assert tuple(out.shape) == (None, None, 4)
    model, given = keras.Model(ids, out), np.array([[0, 1, 2], [5, 6, 7]], np.int32)
    np.testing.assert_allclose(model.predict(given, verbose=0), array(layer(tensor(given))), atol=1e-6)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert again.get_config() == layer.get_config()


@pytest.mark.every_backend
@pytest.mark.parametrize("ids", [[0, 9], [-1, 0]], ids=str)
def test_learned_has_no_others(ids: list[int]) -> None:
    with pytest.raises(ArgumentError, match=r"position_ids: expected 0 to 8, the rows of the table. Received: "):
        Learned(9, 4)(tensor(np.array(ids)))


def test_bad_input() -> None:
    for args in ((3,), (0,)):
        with pytest.raises(ArgumentError, match="dim"):
            Sinusoidal(*args)
    for kind, options in ((Sinusoidal, {"dim": 4}), (Learned, {"max_positions": 9, "dim": 4})):
        with pytest.raises(DtypeError, match="position_ids: expected an integer tensor"):
            kind(**options)(tensor(np.zeros((1, 2))))
    for options in ({"max_positions": 0}, {"dim": 0}, {"std": 0.0}):
        with pytest.raises(ArgumentError, match=next(iter(options))):
            Learned(**{"max_positions": 9, "dim": 4, **options})
