"""The doctor on layers as people write them: in tf, in keras.ops, in jax."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import pytest

import headwise
from headwise.cli import main
from headwise.doctor import Diagnosis
from headwise.keras import DecoderLayer
from tests.keras.backend import BACKEND
from tests.keras.layers import mistakes

LAYERS = Path(__file__).parent / "layers"
OUTSIDE = f"examined on {BACKEND} by behaviour and gradients; its operations are not visible to torch"
FEW = {  # of the layers in keras.ops, and all that run on JAX, where each layer takes seconds
    ("operations", "MultiHeadSelfAttention", "keys for values"),
    ("operations", "MultiHeadSelfAttention", "mask over queries"),
    ("operations", "MultiHeadSelfAttention", "dropout always on"),
    ("operations", "CausalSelfAttention", ""),
    ("operations", "CausalSelfAttention", "one ahead"),
    ("in_jax", "Attention", ""),
    ("in_jax", "Attention", "mask turned round"),
    ("in_jax", "Attention", "heads merged without transpose"),
}
UNSEEN = ("operations", "MultiHeadSelfAttention", "keys for values")  # on torch: the unused projection has no weights


def each() -> Iterator[tuple[str, str, str]]:
    """(file, class, mistake) of every layer for this backend; "" is the healthy form."""
    for file, classes in mistakes.FILES[BACKEND].items():
        for name, wrongs in classes.items():
            yield from ((file, name, wrong) for wrong in ("", *wrongs))


CASES = [case for case in each() if case[0] == "tutorial"]
CASES += [case for case in each() if case in FEW and (BACKEND != "torch" or case != UNSEEN)]


QUICK = {  # the others are slow: what is examined is the same for all
    "tensorflow": {("operations", "CausalSelfAttention", "one ahead")},
    "jax": {("in_jax", "Attention", "")},
    "torch": {
        ("operations", "CausalSelfAttention", ""),
        ("operations", "CausalSelfAttention", "one ahead"),
    },
}[BACKEND]


def examined(file: str, name: str, wrong: str) -> Diagnosis:
    """The diagnosis of one layer, 16 wide with 4 heads, which is built by trial."""

    def make(**changes: Any) -> keras.layers.Layer:
        cls = getattr(importlib.import_module(f"tests.keras.layers.{file}"), name)
        sizes = (changes.get(key, size) for key, size in mistakes.SIZES[name].items())
        layer: keras.layers.Layer = cls(*sizes, wrong=wrong)
        return layer

    return headwise.diagnose(make(), make=make, timeout=None)


@pytest.mark.every_backend
@pytest.mark.parametrize(
    ("file", "name", "wrong"), [pytest.param(*x, marks=() if x in QUICK else pytest.mark.slow) for x in CASES]
)
def test_each_mistake_is_named_and_the_healthy_form_has_none(file: str, name: str, wrong: str) -> None:
    diagnosis = examined(file, name, wrong)
    bugs = {x.name for x in diagnosis.bugs}
    assert (mistakes.NAMES[wrong] in bugs) if wrong else diagnosis.healthy, str(diagnosis)
    if BACKEND != "torch":
        assert diagnosis.evidence == OUTSIDE
        assert {"scale", "layout", "masked_scores", "precision"} <= diagnosis.unchecked.keys()
    if not wrong and BACKEND != "torch":
        said = " ".join(str(diagnosis).split())
        assert diagnosis.evidence in said
        assert f"{len(diagnosis.unchecked)} checks could not be made" in said
        assert f"its operations run on {BACKEND}, and torch does not see them: " in said


LIBRARY: dict[str, Any] = {
    "MultiHeadAttention": lambda: keras.layers.MultiHeadAttention(4, 4),
    "GroupQueryAttention": lambda: keras.layers.GroupQueryAttention(4, 4, 2),
    "Attention": lambda: keras.layers.Attention(use_scale=True),
    "AdditiveAttention": lambda: keras.layers.AdditiveAttention(),
    "DecoderLayer": lambda: DecoderLayer(16, 4),
}
OF_ALL = {"jax": ("Attention",), "tensorflow": ("MultiHeadAttention", "Attention")}.get(BACKEND, ())
SLOW = ("DecoderLayer", "GroupQueryAttention", "MultiHeadAttention") if BACKEND == "torch" else OF_ALL


@pytest.mark.every_backend
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(x, marks=pytest.mark.slow if x in SLOW else ())
        for x in LIBRARY
        if BACKEND == "torch" or x in OF_ALL
    ],
)
def test_the_layers_of_the_libraries_are_healthy(name: str) -> None:
    """Their masks (query_mask, value_mask, attention_mask, use_causal_mask) are arguments like any other."""
    diagnosis = headwise.diagnose(LIBRARY[name](), make=LIBRARY[name], timeout=None)
    assert diagnosis.healthy, str(diagnosis)
    if name == "DecoderLayer":
        assert any("value_mask [B, K], True = may attend" in line for line in diagnosis.understood)


def test_the_command_builds_a_layer_and_says_what_it_saw(capsys: pytest.CaptureFixture[str]) -> None:
    target = f"{LAYERS / 'operations.py'}:CausalSelfAttention"
    code = main(["doctor", target, "--set", "width=16", "--set", "heads=4", "--json", "-"])
    (diagnosis,) = json.loads(capsys.readouterr().out)["diagnoses"]
    assert (code, diagnosis["healthy"]) == (0, True)
    assert diagnosis["evidence"] == "examined by operations, behaviour and gradients"


@pytest.mark.slow
@pytest.mark.every_backend
@pytest.mark.skipif(BACKEND != "tensorflow", reason="one process with TensorFlow is enough")
def test_the_command_finds_out_the_backend(tmp_path: Path) -> None:
    """Without KERAS_BACKEND, in a process of its own, which limits its time and memory."""
    kept = {name: x for name, x in os.environ.items() if name not in ("KERAS_BACKEND", "HEADWISE_KERAS_BACKEND")}
    found, target = tmp_path / "found.json", f"{LAYERS / 'tutorial.py'}:CrossAttention(16, 4)"
    command = [sys.executable, "-m", "headwise", "doctor", target, "--isolate", "--json", str(found)]
    ran = subprocess.run(command, env=kept, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    (diagnosis,) = json.loads(found.read_text(encoding="utf-8"))["diagnoses"]
    assert diagnosis["evidence"].startswith("examined on tensorflow by behaviour and gradients")


@pytest.mark.every_backend
def test_a_keras_layer_that_no_call_fits_is_not_examined() -> None:
    class Picky(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            raise ValueError("never")

    diagnosis = headwise.diagnose(Picky(), make=Picky)
    if BACKEND == "torch":
        assert not diagnosis.healthy
        return
    assert diagnosis.not_examined.startswith("Picky.forward(x): no way to call it was found")
    assert diagnosis.evidence == ""


@pytest.mark.every_backend
@pytest.mark.skipif(BACKEND == "jax", reason="JAX compiles each shape that the doctor tries")
def test_a_mask_that_keras_passes_itself_means_what_keras_means() -> None:
    """Without any documentation: `mask` of a layer with one input is Keras's own mask."""

    class Pooled(keras.layers.Layer):
        def __init__(self, known: bool) -> None:
            super().__init__()
            self.supports_masking = known
            self.q, self.k, self.v = (keras.layers.Dense(16) for _ in range(3))

        def call(self, x: Any, mask: Any = None) -> Any:
            scores = self.q(x) @ keras.ops.transpose(self.k(x), (0, 2, 1)) / 4.0
            if mask is not None:
                scores = scores - 1e9 * keras.ops.cast(mask, "float32")[:, None, :]
            return keras.ops.softmax(scores) @ self.v(x)

    for known, severity in ((True, "bug"), (False, "risk"))[: None if BACKEND == "tensorflow" else 1]:
        diagnosis = headwise.diagnose(Pooled(known), make=lambda known=known: Pooled(known), timeout=None)
        assert ("mask-polarity", severity) in {(x.name, x.severity) for x in diagnosis.findings}, str(diagnosis)


@pytest.mark.skipif(BACKEND != "torch", reason="only there the layer is a torch module that has a state dict")
def test_a_layer_that_keras_can_save_is_no_bug_of_its_state_dict() -> None:
    """Keras copies such a layer by saving and loading it, and gives the weights of the copy new names."""

    @keras.saving.register_keras_serializable(package="tests")
    class Pools(keras.layers.Layer):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.hidden, self.score = keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1, use_bias=False)

        def build(self, shape: Any) -> None:
            self.hidden.build(shape)
            self.score.build((*shape[:-1], 16))

        def call(self, inputs: Any) -> Any:
            weights = keras.ops.softmax(self.score(self.hidden(inputs)), axis=1)
            return keras.ops.sum(weights * inputs, axis=1)

    diagnosis = headwise.diagnose(Pools(), make=Pools)
    assert not diagnosis.bugs, str(diagnosis)
    assert "modes" not in diagnosis.unchecked
