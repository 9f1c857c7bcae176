"""`headwise doctor --model` and `diagnose_model` for Keras models: each kind of layer, with the arguments it gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from headwise.cli import main
from headwise.doctor import diagnose_model
from headwise.errors import ArgumentError
from headwise.keras.example_inputs import example_inputs
from headwise.keras.watching.attention_layers import attention_layers
from tests.keras.backend import BACKEND, array
from tests.keras.layers.models import make_classifier, make_decoder, make_nothing

MODELS = Path(__file__).parent / "layers" / "models.py"


@pytest.mark.every_backend
def test_the_layers_of_a_model_and_their_arguments() -> None:
    model = make_classifier()
    inputs = example_inputs(model)
    found = attention_layers(model, lambda: model(inputs))
    assert [path.rpartition(".")[2] for path, _, _ in found] == ["first", "att", "att"]
    (x,), given = found[0][2]
    assert x.shape == (2, 7, 16)
    assert given["mask"].tolist() == [[True] * 7, [True] * 5 + [False] * 2]  # that of Embedding
    assert "training" not in given
    assert found[1][2][1]["query_mask"].tolist() == given["mask"].tolist()


@pytest.mark.every_backend
@pytest.mark.skipif(BACKEND == "jax", reason="JAX compiles each shape that the doctor tries")
def test_each_kind_is_examined_once(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--model", f"{MODELS}:make_decoder", "--json", "-"])
    (diagnosis,) = json.loads(capsys.readouterr().out)["diagnoses"]
    assert code == 1
    assert diagnosis["subject"] == "CausalSelfAttention (blocks.{0-1})"
    assert [x["name"] for x in diagnosis["findings"] if x["severity"] == "bug"] == ["causal-leak"]
    if BACKEND != "torch":
        assert diagnosis["evidence"].startswith(f"examined on {BACKEND}")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`build:UserWarning")  # Keras says how it builds a loaded layer
def test_a_saved_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its own classes are imported from the files that it names, seen from the working directory."""
    monkeypatch.chdir(MODELS.parents[3])
    make_classifier().save(tmp_path / "model.keras")
    assert main(["doctor", "--model", str(tmp_path / "model.keras"), "--json", "-"]) == 1
    first, second = json.loads(capsys.readouterr().out)["diagnoses"]
    assert first["subject"] == "MultiHeadSelfAttention (first)"
    assert second["subject"].startswith("MultiHeadAttention (block")
    assert second["subject"].count(".att") == 2
    assert [x["name"] for x in first["findings"] if x["severity"] == "bug"] == ["mask-broadcast"]
    assert second["healthy"]


@pytest.mark.every_backend
def test_what_cannot_be_examined_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--model", f"{MODELS}:make_nothing"]) == 2
    assert "no attention was seen in Sequential while it ran" in capsys.readouterr().err
    (tmp_path / "model.keras").write_bytes(b"PK")
    assert main(["doctor", "--model", str(tmp_path / "model.keras")]) == 2
    assert "expected a model that keras.saving.load_model loads" in capsys.readouterr().err
    model, _ = make_decoder()
    with pytest.raises(ArgumentError, match=r"a Decoder that states none\. Name a function that returns the model and"):
        example_inputs(model)
    assert len(make_nothing().layers) == 1


def test_inputs_that_are_made_up() -> None:
    ids, mask, kind, image = (
        keras.Input((None,), dtype="int32", name="ids"),
        keras.Input((9,), dtype="bool", name="real"),
        keras.Input((None,), dtype="int32", name="token_type_ids"),
        keras.Input((4, None, 3), name="image"),
    )
    table = keras.layers.Embedding(5, 2)
    out = ops.sum(table(ids)) + ops.sum(ops.cast(mask, "float32")) + ops.sum(table(kind)) + ops.sum(image)
    given = example_inputs(keras.Model({"ids": ids, "real": mask, "token_type_ids": kind, "image": image}, out))
    found = {name: array(x) for name, x in given.items()}
    assert found["ids"].shape == (2, 7)
    assert found["ids"][0].min() >= 1
    assert found["ids"].max() <= 4
    assert found["ids"][1].tolist()[-2:] == [0, 0]
    assert found["real"].tolist() == [[True] * 9, [True] * 7 + [False] * 2]
    assert not found["token_type_ids"].any()
    assert found["image"].shape == (2, 4, 7, 3)
    assert np.std(found["image"]) > 0.5


@pytest.mark.every_backend
def test_a_layer_without_weights_is_the_one_around_it() -> None:
    class Around(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k = keras.layers.Dense(8), keras.layers.Dense(8)
            self.attend = keras.layers.Attention()

        def call(self, x: Any) -> Any:
            return self.attend([self.q(x), self.k(x)])

    inputs = keras.Input((5, 8))
    model = keras.Model(inputs, Around()(inputs))
    (found,) = attention_layers(model, lambda: model(example_inputs(model)))
    assert isinstance(found[1], Around)


def test_from_python() -> None:
    model, x = make_decoder(wrong="")
    (diagnosis,) = diagnose_model(model, lambda: model(x))
    assert diagnosis.healthy
    assert diagnosis.subject == "CausalSelfAttention (blocks.{0-1})"
