"""`keras.distribution` over two devices trains what one device does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import keras
import numpy as np
import pytest

import headwise.keras
import tests.keras.backend  # noqa: F401 (it makes JAX compile quickly)
from headwise import masks

pytestmark = pytest.mark.every_backend


@pytest.fixture(autouse=True)
def _not_distributed_afterwards() -> Iterator[None]:
    yield
    keras.distribution.set_distribution(None)


def weights_after_training(kernel: str) -> tuple[list[np.ndarray], Any]:
    """And how the kernel of a projection is spread."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((7, 8))
    scheme = headwise.keras.positions.Rope(4)
    layer = headwise.keras.MultiHeadAttention(8, 2, positions=scheme, kernel=kernel, name="attention")
    x = headwise.keras.EncoderLayer(8, attention=layer, ffn_dim=8)(inputs, attention_mask=masks.window(3, 0))
    model = keras.Model(inputs, keras.layers.Dense(3)(x))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(16, 7, 8)).astype("f4"), rng.normal(size=(16, 7, 3)).astype("f4")
    model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return model.get_weights(), layer.qkv.kernel.value.sharding


@pytest.mark.parametrize("by", ["data", "model"])
def test_two_devices_learn_what_one_does(by: str) -> None:
    assert len(jax.devices()) == 2  # tests/keras/conftest.py makes them
    kernel = {"data": "plain", "model": "banded"}[by]
    one, _ = weights_after_training(kernel)
    if by == "data":
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"]))
    else:
        mesh = keras.distribution.DeviceMesh((1, 2), ["batch", "model"], ["cpu:0", "cpu:1"])
        layout = keras.distribution.LayoutMap(mesh)
        layout[".*qkv.kernel"] = (None, "model")
        layout[".*out.kernel"] = ("model", None)
        keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch"))
    two, sharding = weights_after_training(kernel)
    assert len(sharding.device_set) == 2
    assert sharding.is_fully_replicated == (by == "data")
    for x, y in zip(one, two, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-4)
