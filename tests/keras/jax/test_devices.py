"""`keras.distribution` over two devices trains what one device does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import headwise

pytestmark = pytest.mark.every_backend

TWO_DEVICES = """
import jax
import keras
import numpy as np
import headwise.keras
from headwise import masks

assert len(jax.devices()) == 2


def weights_after_training(kernel):
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


one = {kernel: weights_after_training(kernel)[0] for kernel in ("plain", "banded")}
mesh = keras.distribution.DeviceMesh((1, 2), ["batch", "model"], ["cpu:0", "cpu:1"])
layout = keras.distribution.LayoutMap(mesh)
layout[".*qkv.kernel"] = (None, "model")
layout[".*out.kernel"] = ("model", None)
by_data = keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"])
by_model = keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")
for distribution, kernel in ((by_data, "plain"), (by_model, "banded")):
    keras.distribution.set_distribution(distribution)
    found, sharding = weights_after_training(kernel)
    assert len(sharding.device_set) == 2
    assert sharding.is_fully_replicated == (distribution is by_data)
    for x, y in zip(one[kernel], found, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-4)
"""


def test_two_devices_learn_what_one_does(tmp_path: Path) -> None:
    script = tmp_path / "two.py"
    script.write_text(TWO_DEVICES, encoding="utf-8")
    given = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "PYTHONPATH": str(Path(headwise.__file__).parents[1]),
    }
    done = subprocess.run([sys.executable, str(script)], env=os.environ | given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
