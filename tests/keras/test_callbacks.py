"""The callbacks write what can be worked out by hand, and leave the training as it was."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from headwise import masks
from headwise.errors import ArgumentError, DtypeError
from headwise.keras import MultiHeadAttention
from headwise.keras.callbacks import AttentionEntropy, AttentionPictures, GradientNorms
from tests.keras.backend import BACKEND, array, tensor, weight_gradients

JIT = [False] if BACKEND == "torch" else [False, True]


def written(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0}).Reload()


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Name -> (step, value) of each."""
    events = written(folder)
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}


def line(rate: float, *, policy: str = "float32", jit_compile: bool = False) -> keras.Model:
    """y = w · x with w = (1, 1), and a squared error."""
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", name="line", dtype=policy)
    model = keras.Sequential([keras.Input((2,)), dense])
    optimizer: Any = keras.optimizers.SGD(rate)
    if policy == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=1024.0)
    model.compile(optimizer, "mse", jit_compile=jit_compile)
    return model


X, Y = np.array([[1.0, 2.0]], dtype="float32"), np.array([[1.0]], dtype="float32")


def attending(**kwargs: Any) -> keras.Model:
    """Words 0 to 9, 4 of them, to one number; two heads, causal. Everything that draws or counts is in it."""
    ids = keras.Input((4,), dtype="int32")
    x = keras.layers.Embedding(10, 8, name="embed")(ids)
    x = MultiHeadAttention(8, 2, name="attention", dropout=0.1)(x, attention_mask=masks.causal())
    x = keras.layers.BatchNormalization(name="norm")(keras.layers.Dropout(0.2)(x))
    y = keras.layers.Dense(1, name="judge", kernel_regularizer="l2")(keras.layers.GlobalAveragePooling1D()(x))
    model = keras.Model(ids, y)
    model.compile(**{"optimizer": "adam", "loss": "mse", "metrics": ["mae"], **kwargs})
    return model


IDS = np.random.default_rng(0).integers(0, 10, (8, 4)).astype("int32")
SUMS = IDS.sum(1, keepdims=True) / np.float32(10)


@pytest.mark.every_backend
@pytest.mark.parametrize("jit_compile", JIT)
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_gradient_norms_by_hand(tmp_path: Path, policy: str, jit_compile: bool) -> None:
    """After n steps of 1/20 the error is 2, 1, 1/2 …, and the gradient 2 · error · (1, 2)."""
    model = line(0.05, policy=policy, jit_compile=jit_compile)
    model.fit(X, Y, epochs=3, verbose=0, callbacks=[GradientNorms(tmp_path, X, Y, every=2)])
    model.fit(X, Y, initial_epoch=3, epochs=4, verbose=0, callbacks=[GradientNorms(tmp_path, X, Y, every=2)])
    expected = [(1, pytest.approx(math.sqrt(5), rel=2e-3)), (3, pytest.approx(math.sqrt(5) / 4, rel=2e-3))]
    assert scalars(tmp_path) == {"attention/gradient_norm": expected, "attention/line/gradient_norm": expected}


def test_gradient_norms_of_steps(tmp_path: Path) -> None:
    norms = GradientNorms(tmp_path, X, Y, sample_weight=np.full(1, 0.5), every=3, per="batch", prefix="mine/")
    line(0.0).fit(np.repeat(X, 5, 0), np.repeat(Y, 5, 0), batch_size=1, epochs=2, verbose=0, callbacks=[norms])
    expected = [(step, pytest.approx(math.sqrt(80) / 2)) for step in (3, 6, 9)]
    assert scalars(tmp_path)["mine/gradient_norm"] == expected


def test_gradient_norms_are_those_of_the_loss(tmp_path: Path) -> None:
    """Of a layer all that is in it; regularisation counts; an embedding's rows that come twice are added up first."""
    ids = keras.Input((4,), dtype="int32")
    x = MultiHeadAttention(8, 2, name="attention")(keras.layers.Embedding(10, 8, name="embed")(ids))
    y = keras.layers.Dense(1, name="judge", kernel_regularizer="l2")(keras.layers.GlobalAveragePooling1D()(x))
    model = keras.Model(ids, y)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    model.fit(IDS, SUMS, verbose=0, callbacks=[GradientNorms(tmp_path, IDS, SUMS)])

    kernel = model.get_layer("judge").kernel

    def loss() -> Any:
        return keras.ops.mean((model(tensor(IDS)) - tensor(SUMS)) ** 2) + 0.01 * keras.ops.sum(keras.ops.square(kernel))

    found = {}
    for name, layer in (("", model), *((f"/{each.name}", each) for each in model.layers if each.trainable_variables)):
        gradients = weight_gradients(loss, layer).values()
        found[f"attention{name}/gradient_norm"] = math.sqrt(sum(float((g.astype(float) ** 2).sum()) for g in gradients))
    known = {name: value for name, [(_, value)] in scalars(tmp_path).items()}
    assert {
        "attention/attention.qkv/gradient_norm",
        "attention/attention.out/gradient_norm",
    } == known.keys() - found.keys()
    assert {name: known[name] for name in found} == pytest.approx(found, rel=1e-4)


@pytest.mark.every_backend
def test_training_is_what_it_would_be(tmp_path: Path) -> None:
    def fit(callbacks: list[Any]) -> list[np.ndarray]:
        keras.utils.set_random_seed(0)
        model = attending()
        history = model.fit(IDS, SUMS, batch_size=4, epochs=2, verbose=0, callbacks=callbacks).history
        variables = [*model.variables, *model.optimizer.variables]
        return [*(array(v.value) for v in variables), *map(np.array, history.values())]

    looking = [AttentionEntropy(IDS, tmp_path), AttentionPictures(IDS, tmp_path)]
    with_them = fit([GradientNorms(tmp_path, IDS, SUMS, per="batch"), *looking])
    assert len(written(tmp_path).Images("attention/attention/weights/example_0")) == 2
    for x, y in zip(fit([]), with_them, strict=True):
        np.testing.assert_array_equal(x, y)


def test_entropy_and_pictures_by_hand(tmp_path: Path) -> None:
    """Queries and keys of 0 make each query look at all keys alike: with a causal mask at 1, 2, 3 and 4 of them."""
    model = attending(optimizer=keras.optimizers.SGD(0.0))
    for weight in model.get_layer("attention").qkv.weights:
        weight.assign(keras.ops.zeros(weight.shape))
    entropy, pictures = AttentionEntropy(IDS, tmp_path), AttentionPictures(IDS, tmp_path, examples=2, size=8, every=2)
    model.fit(IDS, SUMS, epochs=2, verbose=0, callbacks=[entropy, pictures])
    expected = [(epoch, pytest.approx(math.log(24) / 4, rel=1e-4)) for epoch in (0, 1)]
    names = ("entropy", "entropy/head_0", "entropy/head_1")
    assert scalars(tmp_path) == {f"attention/attention/{name}": expected for name in names}

    events = written(tmp_path)
    assert events.Tags()["images"] == [f"attention/attention/weights/example_{i}" for i in (0, 1)]
    [picture] = events.Images("attention/attention/weights/example_0")
    assert picture.step == 1
    pixels = np.asarray(Image.open(io.BytesIO(picture.encoded_image_string)).convert("L"))
    assert pixels.shape == (8, 18)  # a cell is 2 × 2, and there are 2 between the heads
    np.testing.assert_array_equal(pixels[::2, :8:2], pixels[1::2, 11::2])
    shades = [round(255 * (1 - math.sqrt(1 / n))) for n in (1, 2, 3, 4)]
    np.testing.assert_array_equal(
        pixels[::2, :8:2], [[shades[q] if k <= q else 255 for k in range(4)] for q in range(4)]
    )


def test_entropy_is_that_of_the_weights(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(3, 5, 8)).astype("float32")
    inputs = keras.Input((5, 8))
    out, weights = MultiHeadAttention(8, 2, name="attention")(inputs, return_attention_scores=True)
    model = keras.Model(inputs, out)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    model.fit(x, x, verbose=0, callbacks=[AttentionEntropy(x, tmp_path, only="attention", prefix="seen")])
    a = array(keras.Model(inputs, weights)(x)).astype(float)
    expected = -(a * np.log(a)).sum(-1).mean((0, 2))
    found = scalars(tmp_path)
    assert [found[f"seen/attention/entropy/head_{h}"][0][1] for h in (0, 1)] == pytest.approx(expected, abs=1e-5)
    assert found["seen/attention/entropy"][0][1] == pytest.approx(expected.mean(), abs=1e-5)


def test_a_fit_that_fails_leaves_nothing_half_written(tmp_path: Path) -> None:
    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            raise KeyboardInterrupt

    everything = [GradientNorms(tmp_path / "a", X, Y), AttentionEntropy(X, tmp_path / "a")]
    with pytest.raises(KeyboardInterrupt):
        line(0.0).fit(X, Y, verbose=0, callbacks=[*everything, Fails()])
    with pytest.raises(Exception, match=r"(?i)shape|dim|size"):  # of the model, which takes two numbers
        line(0.0).fit(X, Y, verbose=0, callbacks=[GradientNorms(tmp_path / "a", np.ones((1, 3)), Y)])
    assert not (tmp_path / "a").exists()

    class FailsLater(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        line(0.0).fit(X, Y, epochs=2, verbose=0, callbacks=[everything[0], FailsLater()])
    assert scalars(tmp_path / "a")["attention/gradient_norm"] == [(0, pytest.approx(math.sqrt(80)))]


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # Keras's own
def test_a_model_without_attention_is_told_of_once(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"AttentionEntropy: no head was recorded") as told:
        line(0.0).fit(X, Y, epochs=2, verbose=0, callbacks=[AttentionEntropy(X, tmp_path / "a")])
    assert len([each for each in told if each.category is UserWarning]) == 1
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"log_dir": 3}, DtypeError),
        ({"log_dir": ""}, ArgumentError),
        ({"log_dir": __file__}, ArgumentError),
        ({"every": 0}, ArgumentError),
        ({"every": True}, ArgumentError),
        ({"prefix": "/"}, ArgumentError),
        ({"x": None}, ArgumentError),
        ({"x": np.ones((0, 2))}, ArgumentError),
        ({"x": [np.ones((1, 2)), np.ones((2, 2))]}, ArgumentError),
        ({"x": {1, 2}}, DtypeError),
    ],
    ids=lambda given: given.__name__ if isinstance(given, type) else next(iter(given)),
)
@pytest.mark.parametrize("make", [GradientNorms, AttentionEntropy, AttentionPictures])
def test_bad_options(make: Any, options: dict[str, Any], error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(error, match=f"^{next(iter(options))}: "):
        make(**{"x": X, "log_dir": tmp_path, **options})


def test_bad_options_of_one(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"^per: "):
        GradientNorms(tmp_path, X, Y, per="step")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"^x, y, sample_weight: .*\[1, 2\]"):
        GradientNorms(tmp_path, X, np.ones((2, 1)))
    for option in ("examples", "size"):
        with pytest.raises(ArgumentError, match=f"^{option}: "):
            AttentionPictures(X, tmp_path, **{option: 0})
    frozen = line(0.0)
    frozen.trainable = False
    frozen.compile("sgd", "mse")
    with pytest.raises(ArgumentError, match="trainable weights"):
        frozen.fit(X, Y, verbose=0, callbacks=[GradientNorms(tmp_path, X, Y)])
