"""`model.fit` learns: with every kernel and dtype, compiled and not, of any length; one seed gives one history."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import torch
from keras import ops

import headwise.keras
from headwise import masks
from tests.keras.backend import BACKEND, array, cases, tensor

MultiHeadAttention = headwise.keras.MultiHeadAttention
positions = headwise.keras.positions

LENGTH, DIM = 12, 8
ON_TORCH = ["torch"] if BACKEND == "torch" else []  # headwise.attention is for tensors of torch


def task(length: int = LENGTH, examples: int = 64, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Every fourth token is marked, x[..., 0] = 3. What is asked for is the last marked token, at each position.

    A window of four tokens holds exactly one, so attention alone can do it, and nothing else can.
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(examples, length, DIM)).astype(np.float32)
    x[..., 0] = np.where(np.arange(length) % 4 == 0, 3.0, 0.0)
    return x, x[:, np.arange(length) // 4 * 4, 1:]


def model_of(length: int | None = LENGTH, *, seed: int = 0, **options: Any) -> keras.Model:
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((length, DIM))
    attention = MultiHeadAttention(DIM, 2, head_dim=8, scale=1.0, name="attention", **options)
    return keras.Model(inputs, keras.layers.Dense(DIM - 1)(attention(inputs, attention_mask=masks.window(3, 0))))


def losses(model: keras.Model, epochs: int = 12, length: int = LENGTH, **compiled: Any) -> list[float]:
    """The loss of each epoch; shuffled by the seed of the model."""
    compiled = {"jit_compile": False} | compiled if BACKEND != "jax" else compiled
    model.compile(keras.optimizers.Adam(0.05), "mse", **compiled)
    found: list[float] = model.fit(*task(length), batch_size=16, epochs=epochs, verbose=0, shuffle=False).history[
        "loss"
    ]
    return found


def falls_well(history: list[float]) -> bool:
    return bool(np.isfinite(history).all()) and history[-1] < 0.2 * history[0]


# --- Kernels and ways to run ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain() -> list[float]:
    history = losses(model_of(kernel="plain"))
    assert falls_well(history)
    return history


@pytest.mark.parametrize("kernel", ["auto", "chunked", "banded", "block_sparse", *ON_TORCH])
def test_all_kernels_learn_the_same(kernel: str, plain: list[float]) -> None:
    np.testing.assert_allclose(losses(model_of(kernel=kernel), epochs=3), plain[:3], rtol=1e-3)


@pytest.mark.every_backend
@pytest.mark.skipif(BACKEND == "torch", reason="torch has no XLA")
@pytest.mark.parametrize(  # the others: tensorflow/test_compiled.py
    "kernel", [*(pytest.param(x, marks=pytest.mark.slow) for x in ("chunked", "banded")), "block_sparse"]
)
def test_compiled_by_xla(kernel: str, plain: list[float]) -> None:
    history = losses(model_of(kernel=kernel), epochs=3, jit_compile=True)
    np.testing.assert_allclose(history, plain[:3], rtol=1e-3)


@pytest.mark.parametrize("jit_compile", {"tensorflow": [False, True], "jax": [True], "torch": [False]}[BACKEND])
@pytest.mark.parametrize("kernel", cases(["plain", "chunked"], "plain"))
def test_any_length(kernel: str, jit_compile: bool) -> None:
    """Trained on one length, right on another."""
    model = model_of(None, kernel=kernel)
    assert falls_well(losses(model, jit_compile=jit_compile))
    x, y = task(20, 16, seed=1)
    assert model.evaluate(x, y, verbose=0) < 0.2
    assert model.predict(x, verbose=0).shape == (16, 20, DIM - 1)


@pytest.mark.parametrize("kernel", cases(["chunked", "banded"], "chunked"))
def test_whatever_is_learned_gets_the_same_gradient(kernel: str) -> None:
    """Sinks, and the table of a position scheme, which no kernel is handed as an argument."""
    found = {}
    for each in ("plain", kernel):
        keras.utils.set_random_seed(0)
        scheme = positions.T5Buckets(2, num_buckets=4, max_distance=4, std=1.0)
        model = model_of(None, kernel=each, sinks=True, gate=True, qk_norm="rms", positions=scheme)
        before = [array(w.value).copy() for w in model.trainable_weights]
        x, y = task(examples=16)
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=BACKEND == "jax")
        model.fit(x, y, batch_size=16, epochs=1, verbose=0)
        after = [array(w.value) for w in model.trainable_weights]
        found[each] = {w.path: a - b for w, a, b in zip(model.trainable_weights, after, before, strict=True)}
    assert sum("sinks" in path or "relative_attention_bias" in path for path in found["plain"]) == 2
    for (path, one), other in zip(found["plain"].items(), found[kernel].values(), strict=True):
        np.testing.assert_allclose(other, one, atol=1e-6, err_msg=path)
        assert np.abs(one).max() > 1e-6, path


# --- Dtypes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", cases(["mixed_float16", "mixed_bfloat16"], "mixed_float16"))
def test_dtype_policies(policy: str) -> None:
    model = model_of(dtype=policy)
    layer = model.get_layer("attention")
    assert falls_well(losses(model))
    x, _ = task(examples=2)
    out, weights = layer(tensor(x), attention_mask=masks.window(3, 0), return_attention_scores=True)
    assert keras.backend.standardize_dtype(out.dtype) == policy.removeprefix("mixed_")
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    assert {keras.backend.standardize_dtype(w.dtype) for w in layer.weights} == {"float32"}
    np.testing.assert_allclose(array(ops.sum(weights, axis=-1)), 1.0, atol=1e-5)


@pytest.mark.every_backend
def test_float16_scores_do_not_overflow() -> None:
    """Scores of 500 · 500 · 8 are 2 million; float16 ends at 65504."""
    layer = MultiHeadAttention(DIM, 1, scale=1e-3, dtype="mixed_float16")
    layer.build()
    layer.qkv.kernel.assign(np.tile(np.eye(DIM, dtype=np.float32), (1, 3)))
    layer.out.kernel.assign(np.eye(DIM, dtype=np.float32) * 1e-2)
    x = np.full((1, 3, DIM), 200.0, np.float32)
    np.testing.assert_allclose(array(layer(tensor(x))).astype(np.float32), 2.0, rtol=1e-2)


# JAX has float64 only where it is switched on for the whole process.
@pytest.mark.every_backend
@pytest.mark.parametrize("policy", ["bfloat16"] if BACKEND == "jax" else ["float64", "bfloat16"])
def test_unmixed_dtypes(policy: str) -> None:
    layer = MultiHeadAttention(DIM, 2, positions=positions.Rope(4), dtype=policy)
    x = ops.cast(tensor(task(examples=2)[0]), policy)
    out, weights = layer(x, attention_mask=masks.causal(), return_attention_scores=True)
    assert keras.backend.standardize_dtype(out.dtype) == policy
    assert keras.backend.standardize_dtype(weights.dtype) == ("float64" if policy == "float64" else "float32")


# --- Dropout ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", cases(["chunked", "block_sparse"], "chunked"))
def test_the_same_seed_drops_the_same(kernel: str) -> None:
    def history(seed: int) -> list[float]:
        return losses(model_of(kernel=kernel, dropout=0.2, seed=seed), epochs=1)

    def model_of(seed: int, **options: Any) -> keras.Model:
        keras.utils.set_random_seed(0)
        inputs = keras.Input((LENGTH, DIM))
        x = MultiHeadAttention(DIM, 2, seed=seed, **options)(inputs, attention_mask=masks.window(3, 0))
        return keras.Model(inputs, keras.layers.Dense(DIM - 1)(x))

    first = history(1)
    np.testing.assert_allclose(history(1), first, rtol=1e-6)
    assert np.abs(np.subtract(history(2), first)).max() > 1e-4


# --- Masks and whole models -------------------------------------------------------------------------------------------


def test_padding_of_embeddings_reaches_attention_and_loss() -> None:
    """Sort of a language model: which token came before. Padding changes no number of the rest."""
    keras.utils.set_random_seed(0)
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(6, DIM, mask_zero=True)(ids)
    attention = MultiHeadAttention(DIM, 2, positions=positions.Rope(4))
    model = keras.Model(ids, keras.layers.Dense(6)(attention(x, attention_mask=masks.causal())))
    model.compile(keras.optimizers.Adam(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    data = np.random.default_rng(0).integers(1, 6, (64, 7)).astype(np.int32)
    data[:, 1] = data[:, 0]
    before = np.concatenate([data[:, :1], data[:, :-1]], axis=1)
    padded = [np.pad(each, ((0, 0), (0, 3))) for each in (data, before)]
    assert model.evaluate(data, before, verbose=0) == pytest.approx(model.evaluate(*padded, verbose=0), rel=1e-5)
    history = model.fit(*padded, batch_size=16, epochs=25, verbose=0).history["loss"]
    assert history[-1] < 0.5 * history[0]
    np.testing.assert_allclose(
        model.predict(padded[0], verbose=0)[:, :7], model.predict(data, verbose=0), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("kernel", ["plain", "chunked"])
def test_rows_and_keys_without_anything_train_on(kernel: str) -> None:
    """No NaN comes from an example of padding alone, nor from NaN in what nobody reads."""
    model_inputs, lengths = keras.Input((LENGTH, DIM)), torch.tensor([LENGTH, 0, 5, 1])
    attention = MultiHeadAttention(DIM, 2, kernel=kernel)
    outputs = attention(model_inputs, attention_mask=masks.lengths(lengths) & masks.causal())
    model = keras.Model(model_inputs, keras.layers.Dense(DIM - 1)(outputs))
    model.compile(keras.optimizers.Adam(0.05), "mse")
    x, y = task(examples=4)
    history = model.fit(x, y, batch_size=4, epochs=3, verbose=0).history["loss"]
    assert np.isfinite(history).all()
    assert all(np.isfinite(w).all() for w in model.get_weights())
