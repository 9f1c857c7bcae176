"""RoPE in Keras: by hand, and equal to the twin in PyTorch with every scaling, at ids of their own."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import pytest
import torch

from headwise.errors import ArgumentError, DtypeError, ShapeError
from headwise.keras.positions import DynamicNTK, Linear, Llama3, Rope, Yarn
from headwise.nn import positions as torch_positions
from tests.keras.backend import BACKEND, array, tensor

OPTIONS: dict[str, dict[str, Any]] = {
    "halves": {},
    "interleaved": {"interleaved": True},
    "partial": {"rotary_dim": 4, "base": 500.0},
    "partial-interleaved": {"rotary_dim": 4, "interleaved": True},
    "linear": {"scaling": Linear(4.0)},
    "dynamic": {"scaling": DynamicNTK(2.0, 5)},
    "dynamic-short": {"scaling": DynamicNTK(2.0, 100)},
    "yarn": {"scaling": Yarn(4.0, 16)},
    "yarn-deepseek": {"scaling": Yarn(40.0, 16, mscale=1.0, mscale_all_dim=0.7), "interleaved": True},
    "llama3": {"scaling": Llama3(8.0, 1.0, 4.0, 64)},
}
IDS = {
    "one-for-all": np.array([0, 1, 5, 130, 131, 999, 1000]),
    "batch": np.array([[0, 0, 0, 1, 2, 3, 4], [3, 2, 1, 0, 100, 200, 300]]),
}


def test_a_quarter_turn_by_hand() -> None:
    # (a, b) → (a cos φ - b sin φ, b cos φ + a sin φ), by 1 and 0.1 radian a position; the pairs are (0, 2), (1, 3).
    x = np.array([1.0, 1.0, 0.0, 0.0]).reshape(1, 1, 1, 4)
    turned = array(Rope(4, base=100.0).rotate(tensor(x), tensor(np.array([2], np.int32)))).ravel()
    np.testing.assert_allclose(turned, [math.cos(2), math.cos(0.2), math.sin(2), math.sin(0.2)], rtol=1e-6)
    turned = array(Rope(4, base=100.0, interleaved=True).rotate(tensor(x), tensor(np.array([2], np.int32)))).ravel()
    np.testing.assert_allclose(turned, [math.cos(2) - math.sin(2), math.cos(2) + math.sin(2), 0, 0], rtol=1e-6)


@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("options", OPTIONS)
def test_same_as_pytorch(options: str, ids: str) -> None:
    x, at = torch.randn(2, 3, 7, 8), IDS[ids]
    want = torch_positions.Rope(8, **OPTIONS[options]).rotate(x, torch.tensor(at), 7)
    got = Rope(8, **OPTIONS[options]).rotate(tensor(x), tensor(at), 7)
    np.testing.assert_allclose(array(got), want, atol=1e-5)


@pytest.mark.every_backend
@pytest.mark.parametrize("length", [4, 9, 64])
def test_a_length_that_is_not_known_before_gives_the_same_frequencies(length: int) -> None:
    rope, x, ids = Rope(8, scaling=DynamicNTK(2.0, 8)), tensor(torch.randn(1, 2, 5, 8)), tensor(np.arange(5))
    known, unknown = rope.rotate(x, ids, length), rope.rotate(x, ids, tensor(np.int32(length)))
    np.testing.assert_allclose(array(known), array(unknown), atol=1e-5)


@pytest.mark.every_backend
def test_low_precision_turns_in_float32() -> None:
    x = torch.randn(1, 2, 3, 8).bfloat16()
    there = keras.ops.cast(tensor(x.float()), "bfloat16")
    got = Rope(8, dtype="mixed_bfloat16").rotate(there, tensor(np.array([0, 100, 1000])))
    assert keras.backend.standardize_dtype(got.dtype) == "bfloat16"
    want = torch_positions.Rope(8).rotate(x, torch.tensor([0, 100, 1000]))
    assert np.array_equal(array(keras.ops.cast(got, "float32")), want.float().numpy())


@pytest.mark.every_backend
@pytest.mark.skipif(BACKEND == "jax", reason="JAX has no float64 unless it is asked for")
def test_float64_stays_so() -> None:
    x = torch.randn(1, 2, 3, 8, dtype=torch.float64)
    got = Rope(8, dtype="float64").rotate(keras.ops.convert_to_tensor(x.numpy()), tensor(np.arange(3)))
    assert keras.backend.standardize_dtype(got.dtype) == "float64"
    # The sums of squares of pairs stay, to more digits than float32 has: those of cos² + sin² = 1 in float32 are ~1e-7.
    want = torch_positions.Rope(8).rotate(x, torch.arange(3))
    np.testing.assert_allclose(array(got)[:, :, 0], x[:, :, 0], rtol=1e-15)
    np.testing.assert_allclose(array(got), want, atol=1e-6)


def test_bad_input() -> None:
    with pytest.raises(ArgumentError, match="head_dim"):  # the twin's checks
        Rope(7)
    x = tensor(torch.randn(2, 3, 7, 8))
    with pytest.raises(ShapeError, match=r"position_ids: expected \[7\] or \[2, 7\]"):
        Rope(8).rotate(x, tensor(np.arange(6)))
    with pytest.raises(ShapeError, match="position_ids"):
        Rope(8).rotate(x, tensor(np.zeros((3, 7), np.int32)))
    with pytest.raises(DtypeError, match="integer"):
        Rope(8).rotate(x, tensor(np.zeros(7)))
    with pytest.raises(ArgumentError, match="length: expected the number of tokens"):
        Rope(8, scaling=DynamicNTK(2.0, 8)).rotate(x, tensor(np.arange(7)))
