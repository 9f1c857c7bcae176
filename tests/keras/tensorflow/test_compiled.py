"""tf.function with sizes that are not known, gradients through it, and training on two devices."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import headwise.keras
from headwise import masks

pytestmark = pytest.mark.every_backend

MultiHeadAttention = headwise.keras.MultiHeadAttention
positions = headwise.keras.positions

KERNELS = [
    ("plain", masks.causal()),
    pytest.param("chunked", masks.causal(), marks=pytest.mark.slow),
    pytest.param("banded", masks.window(3, 0), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("jit_compile", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize(("kernel", "mask"), KERNELS, ids=["plain", "chunked", "banded"])
def test_one_function_for_every_batch_and_length(kernel: str, mask: masks.Mask | None, jit_compile: bool) -> None:
    layer = MultiHeadAttention(16, 4, num_kv_heads=2, kernel=kernel, positions=positions.Rope(4), sinks=True)
    layer.build()

    def outputs(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, attention_mask=mask, training=True)
            loss = tf.reduce_sum(y**2)
        return y, tape.gradient(loss, x)

    signature = [tf.TensorSpec((None, None, 16), tf.float32)]
    compiled = tf.function(outputs, input_signature=signature, jit_compile=jit_compile)
    rng = np.random.default_rng(0)
    for shape in ((2, 7, 16), (1, 70, 16)):
        x = tf.constant(rng.normal(size=shape), tf.float32)
        for found, wanted in zip(compiled(x), outputs(x), strict=True):
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert compiled.experimental_get_tracing_count() == 1


def test_padding_of_unknown_size() -> None:
    layer = MultiHeadAttention(16, 4, kernel="plain")
    layer.build()
    signature = [tf.TensorSpec((None, None, 16)), tf.TensorSpec((None, None), tf.bool)]
    compiled = tf.function(lambda x, real: layer(x, value_mask=real), input_signature=signature)
    x = tf.constant(np.random.default_rng(0).normal(size=(2, 7, 16)), tf.float32)
    real = tf.sequence_mask([7, 0], 7)
    found = compiled(x, real).numpy()
    np.testing.assert_allclose(found, layer(x, value_mask=real), atol=1e-6)
    np.testing.assert_allclose(found[1], np.tile(layer.out.bias.numpy(), (7, 1)), atol=1e-6)


def test_two_devices_learn_what_one_does() -> None:
    def weights_after_training() -> list[np.ndarray]:
        keras.utils.set_random_seed(0)
        inputs = keras.Input((None, 8))
        x = MultiHeadAttention(8, 2, positions=positions.Rope(4))(inputs, attention_mask=masks.causal())
        x = headwise.keras.EncoderLayer(8, 2, ffn_dim=8)(x, attention_mask=masks.window(3, 0))
        model = keras.Model(inputs, keras.layers.Dense(3)(x))
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(16, 7, 8)).astype("f4"), rng.normal(size=(16, 7, 3)).astype("f4")
        model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        found: list[np.ndarray] = model.get_weights()
        return found

    one = weights_after_training()
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])  # tests/keras/conftest.py makes both
    assert strategy.num_replicas_in_sync == 2
    with strategy.scope():
        two = weights_after_training()
    for x, y in zip(one, two, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-4)
