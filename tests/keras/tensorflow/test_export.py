"""Models leave Keras: SavedModels that TensorFlow alone serves, and TFLite."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import headwise.keras
from headwise import masks

pytestmark = pytest.mark.every_backend

MultiHeadAttention = headwise.keras.MultiHeadAttention
positions = headwise.keras.positions

KERNELS = [("plain", masks.causal()), ("chunked", masks.causal()), ("banded", masks.window(3, 0))]
IDS = ["plain", "chunked", "banded"]


def model_of(kernel: str = "plain", mask: masks.Mask | None = None, length: int | None = None) -> keras.Model:
    inputs = keras.Input((length, 16))
    layer = MultiHeadAttention(16, 4, num_kv_heads=2, positions=positions.Rope(4), kernel=kernel, name="attention")
    return keras.Model(inputs, keras.layers.Dense(3)(layer(inputs, attention_mask=mask)))


def example(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


# --- SavedModel -------------------------------------------------------------------------------------------------------

SERVE = """
import sys

sys.modules |= dict.fromkeys(("keras", "headwise", "torch"))  # importing one of them fails
import numpy as np
import tensorflow as tf

data = np.load(sys.argv[1] + "/data.npz")
served = tf.saved_model.load(sys.argv[1] + "/model")
for name in ("short", "long"):
    np.testing.assert_allclose(served.serve(data[name]), data[name + "_out"], rtol=1e-4, atol=1e-5)
    by_signature = served.signatures["serving_default"](tf.constant(data[name]))
    np.testing.assert_allclose(next(iter(by_signature.values())), data[name + "_out"], rtol=1e-4, atol=1e-5)
assert not [name for name in sys.modules if name.startswith(("keras.", "headwise.", "torch."))]
"""


def test_saved_model_is_served_without_keras_and_headwise(tmp_path: Path) -> None:
    model = model_of(mask=masks.causal())
    model.export(tmp_path / "model", verbose=False)
    short, long = example(2, 7, 16), example(1, 70, 16)
    outs = {"short_out": model(short).numpy(), "long_out": model(long).numpy()}
    np.savez(tmp_path / "data.npz", short=short, long=long, **outs)
    script = tmp_path / "serve.py"
    script.write_text(SERVE, encoding="utf-8")
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("kernel", "mask"), KERNELS, ids=IDS)
def test_every_kernel_is_exported_with_any_length(kernel: str, mask: masks.Mask | None, tmp_path: Path) -> None:
    model = model_of(kernel, mask)
    model.export(tmp_path, verbose=False)
    served = tf.saved_model.load(tmp_path)
    for x in (example(2, 7, 16), example(1, 150, 16)):
        np.testing.assert_allclose(served.serve(x), model(x), rtol=1e-4, atol=1e-5)


def test_block_sparse_is_exported_with_one_length(tmp_path: Path) -> None:
    model = model_of("block_sparse", masks.window(3, 0), 100)
    model.export(tmp_path, verbose=False)
    served, x = tf.saved_model.load(tmp_path), example(2, 100, 16)
    np.testing.assert_allclose(served.serve(x), model(x), rtol=1e-4, atol=1e-5)


def test_layers_and_padding_are_exported(tmp_path: Path) -> None:
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(9, 16, mask_zero=True)(ids)
    x = headwise.keras.EncoderLayer(16, 4, ffn_dim=16)(x, attention_mask=masks.causal())
    model = keras.Model(ids, headwise.keras.LatentAttention(3, 16, num_heads=2)(x))
    model.export(tmp_path, verbose=False)
    served, given = tf.saved_model.load(tmp_path), np.array([[1, 2, 3, 0, 0], [4, 5, 6, 7, 8]], np.int32)
    np.testing.assert_allclose(served.serve(given), model(given), rtol=1e-4, atol=1e-5)


# --- TFLite -----------------------------------------------------------------------------------------------------------


def by_tflite(model: keras.Model, x: np.ndarray, path: Path) -> np.ndarray:
    """What TFLite's interpreter makes of x, of one static shape, without TensorFlow's own operations."""
    model.export(path, format="litert", verbose=False)
    interpreter = tf.lite.Interpreter(model_path=str(path))
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


@pytest.mark.filterwarnings(r"ignore:\s*Warning. tf.lite.Interpreter is deprecated")
@pytest.mark.parametrize("kernel", ["plain", "banded", pytest.param("block_sparse", marks=pytest.mark.slow)])
def test_tflite(kernel: str, tmp_path: Path) -> None:  # not chunked: TFLite has no such loop
    model, x = model_of(kernel, masks.window(3, 0), 70), example(1, 70, 16)
    np.testing.assert_allclose(by_tflite(model, x, tmp_path / "m.tflite"), model(x), rtol=1e-4, atol=1e-5)
