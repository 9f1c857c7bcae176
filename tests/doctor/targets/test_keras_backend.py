"""Which backend of Keras a file is for: read from its text, before anything is imported."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from pathlib import Path

import pytest

from headwise.doctor.targets import keras_backend
from headwise.doctor.targets.keras_backend import backend_of, begin_backend, begin_backend_of_saved


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable, no config, and Keras is not imported."""
    monkeypatch.setenv("KERAS_BACKEND", "jax")  # so that it is set back at the end
    monkeypatch.delenv("KERAS_BACKEND")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(keras_backend.importlib.util, "find_spec", lambda name: name)


@pytest.mark.parametrize(
    ("code", "backend"),
    [
        ("import torch", None),
        ("import jax", None),
        ("import tensorflow as tf", "tensorflow"),
        ("from tensorflow.keras import layers", "tensorflow"),
        ("import keras, torch", "torch"),
        ("import keras\ndef f():\n    import jax.numpy as jnp", "jax"),
        ("import keras, jax\nimport tensorflow as tf", "tensorflow"),
        ("import os\nos.environ['KERAS_BACKEND'] = 'jax'\nimport keras, tensorflow", "jax"),
        ("import os\nos.environ.setdefault('KERAS_BACKEND', 'torch')\nimport keras", "torch"),
        ("import keras", "torch"),
        ("import beside", "jax"),
        ("from . import beside", "jax"),
        ("from keras import (", None),
    ],
)
def test_the_file_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, backend: str | None) -> None:
    (tmp_path / "beside.py").write_text("import keras, jax, layers", encoding="utf-8")
    (tmp_path / "layers.py").write_text(code, encoding="utf-8")
    assert backend_of(tmp_path / "layers.py") == backend
    monkeypatch.setenv("KERAS_BACKEND", "openvino")  # the environment wins
    assert backend_of(tmp_path / "layers.py") == (backend and "openvino")


def test_keras_begins_once_and_only_where_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[str, str | None]] = []
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    monkeypatch.setattr(
        keras_backend.importlib,
        "import_module",
        lambda name: begun.append((name, os.environ["KERAS_BACKEND"])),
    )
    (tmp_path / "plain.py").write_text("import torch", encoding="utf-8")
    (tmp_path / "layers.py").write_text("import tensorflow", encoding="utf-8")
    begin_backend(None)
    begin_backend(tmp_path / "plain.py")
    assert not begun
    begin_backend(tmp_path / "layers.py")
    assert begun == [("keras", "tensorflow")]
    monkeypatch.setitem(sys.modules, "keras", json)
    begin_backend(tmp_path / "layers.py")
    assert len(begun) == 1


def test_a_saved_model_is_for_the_backend_of_its_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    (tmp_path / "my_layers.py").write_text("import keras, jax", encoding="utf-8")
    with zipfile.ZipFile(tmp_path / "model.keras", "w") as archive:
        archive.writestr("config.json", json.dumps({"layers": [{"module": "keras.layers"}, {"module": "my_layers"}]}))
    begin_backend_of_saved(tmp_path / "model.keras")
    assert os.environ["KERAS_BACKEND"] == "jax"
