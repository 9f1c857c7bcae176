"""Every layer can be written down and comes back: configs, files of all formats, other processes, other backends."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import torch
from keras import ops

import headwise.keras
from headwise import masks
from headwise.errors import ArgumentError
from headwise.keras import saving
from headwise.models import BertConfig
from tests.keras.backend import BACKEND, array, tensor

MultiHeadAttention = headwise.keras.MultiHeadAttention
positions = headwise.keras.positions

# --- Configs ----------------------------------------------------------------------------------------------------------


def test_given_by_position_or_by_name_the_config_is_the_same() -> None:
    by_name = MultiHeadAttention(dim=16, num_heads=4, name="x").get_config()
    assert MultiHeadAttention(16, 4, name="x").get_config() == by_name


def test_the_config_is_what_was_given_not_what_became_of_it() -> None:
    config = MultiHeadAttention(16, 4).get_config()
    assert (config["dim"], config["num_heads"], config["num_kv_heads"], config["positions"]) == (16, 4, None, None)


@pytest.mark.parametrize("how", ["file", "pickle", "clone"])
def test_one_table_of_two_layers_stays_one(how: str, tmp_path: Path) -> None:
    scheme = positions.T5Buckets(4, std=1.0)
    inputs = keras.Input((None, 16))
    x = MultiHeadAttention(16, 4, positions=scheme)(inputs)
    model = keras.Model(inputs, MultiHeadAttention(16, 4, positions=scheme)(x))
    if how == "file":
        model.save(tmp_path / "m.keras")
        again = keras.saving.load_model(tmp_path / "m.keras")
    elif how == "pickle":
        again = pickle.loads(pickle.dumps(model))
    else:
        again = keras.models.clone_model(model)
    one, other = again.layers[1].positions, again.layers[2].positions
    assert one is not scheme
    if how == "clone":  # layer by layer, so that each gets its own: not what one wants, but Keras asks each apart
        assert one is not other
        return
    assert one is other
    x = tensor(np.random.default_rng(0).normal(size=(2, 8, 16)))
    np.testing.assert_allclose(array(again(x)), array(model(x)), atol=1e-6)


# --- Masks ------------------------------------------------------------------------------------------------------------

MASKS = {
    "causal": masks.causal(),
    "window": masks.window(3, 1, offset=2),
    "combined": (masks.causal() & masks.lengths([5, 8])) | ~masks.window(2, 2),
    "documents": masks.documents(torch.tensor([0, 0, 0, 1, 1, 1, 1, 2])),
    "prefix": masks.prefix(torch.tensor([3, 2])),
    "global": masks.global_tokens([0, 3]) | masks.window(1, 1),
    "dilated": masks.dilated(3),
    "blocks": masks.block_sparse(torch.tensor([[True, False], [True, True]]), block_size=4),
    "runs": masks.runs(torch.zeros(8, dtype=torch.int64), torch.arange(1, 9)),
    "dense": masks.from_tensor(torch.ones(8, 8, dtype=torch.bool).tril()),
    "bits": masks.bits(torch.ones(8, 8, dtype=torch.bool).tril()),
    "keys": masks.padding(torch.tensor([[True] * 5 + [False] * 3])),
}


@pytest.mark.parametrize("name", MASKS)
def test_mask_comes_back_from_data(name: str) -> None:
    mask = MASKS[name]
    data = json.loads(json.dumps(saving.to_config(mask)))
    again = saving.from_config(data)
    assert type(again) is type(mask)
    assert torch.equal(again.to_bool(8), mask.to_bool(8))


@pytest.mark.parametrize("name", MASKS)
def test_functional_model_is_saved_with_its_mask(name: str, tmp_path: Path) -> None:
    inputs = keras.Input((8, 16))
    model = keras.Model(inputs, MultiHeadAttention(16, 4)(inputs, attention_mask=MASKS[name]))
    x = tensor(np.random.default_rng(0).normal(size=(2, 8, 16)))
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_allclose(array(again(x)), array(model(x)), atol=1e-6)
    unmasked = MultiHeadAttention(16, 4)
    unmasked.build()
    unmasked.set_weights(model.get_weights())
    assert np.abs(array(unmasked(x)) - array(model(x))).max() > 1e-3  # it is not that masks do nothing


def test_mask_that_is_code_is_refused(tmp_path: Path) -> None:
    inputs, mask = keras.Input((8, 16)), masks.from_predicate(lambda b, h, q, k: k <= q)
    model = keras.Model(inputs, MultiHeadAttention(16, 4)(inputs, attention_mask=mask & masks.window(4, 4)))
    with pytest.raises(ArgumentError, match=r"code.*masks\.from_tensor\(mask\.to_bool\("):
        model.save(tmp_path / "m.keras")
    fixed = masks.from_tensor((mask & masks.window(4, 4)).to_bool(8))
    other = keras.Model(inputs, MultiHeadAttention(16, 4)(inputs, attention_mask=fixed))
    other.set_weights(model.get_weights())
    other.save(tmp_path / "m.keras")
    x = tensor(np.random.default_rng(0).normal(size=(2, 8, 16)))
    again = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_allclose(array(again(x)), array(model(x)), atol=1e-6)


@pytest.mark.parametrize("data", [{"headwise": "Popen"}, {"headwise": "__import__"}, {"headwise": []}, {"headwise": 1}])
def test_data_makes_masks_and_nothing_else(data: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="expected one of"):
        saving.from_config(data)


# --- Models -----------------------------------------------------------------------------------------------------------


def functional() -> keras.Model:
    """Token ids with padding, of any length; every option that attention has."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = keras.layers.Embedding(11, 16, mask_zero=True)(ids)
    first = MultiHeadAttention(
        16,
        4,
        num_kv_heads=2,
        qk_norm="rms",
        sinks=True,
        gate=True,
        softcap=20.0,
        positions=positions.Rope(4, scaling=positions.Yarn(4.0, 8)),
        kernel="plain",
    )
    x = first(x, attention_mask=masks.causal() & masks.window(5, 0))
    x = MultiHeadAttention(16, 2, kernel="plain", dropout=0.1)(x, use_causal_mask=True)
    return keras.Model(ids, keras.layers.Dense(11)(x))


def two_inputs() -> keras.Model:
    """Cross-attention with a mask that is an input; the weights are an output."""
    x, memory = keras.Input((None, 16), name="x"), keras.Input((None, 8), name="memory")
    allowed = keras.Input((None, None), dtype="bool", name="allowed")
    layer = MultiHeadAttention(16, 4, kdim=8, kernel="plain")
    out, weights = layer(x, memory, attention_mask=allowed, return_attention_scores=True)
    return keras.Model([x, memory, allowed], {"out": out, "weights": weights})


def sequential() -> keras.Model:
    """A stack, one of whose layers adds to its input."""
    layers = [MultiHeadAttention(16, 4, kernel="plain"), keras.layers.LayerNormalization(), keras.layers.Dense(3)]
    return keras.Sequential([keras.Input((None, 16)), *layers])


def layers() -> keras.Model:
    """The larger layers, two of which share a table."""
    inputs = keras.Input((None, 16), name="x")
    table = positions.T5Buckets(4, num_buckets=8, std=1.0)
    x = inputs
    for i in range(2):
        attention = MultiHeadAttention(16, 4, positions=table, kernel="plain")
        mask = masks.window(2, 2) if i else None
        x = headwise.keras.EncoderLayer(16, attention=attention, ffn_dim=24)(x, attention_mask=mask)
    latent = headwise.keras.LatentAttention(
        3, 16, num_heads=2, num_reads=2, share_reads=True, self_layers=1, read_out=True, kernel="plain"
    )
    return keras.Model(inputs, headwise.keras.DecoderLayer(16, 4)(x, latent(x)))


def bert() -> keras.Model:
    """A BERT with a classifier on top."""
    config = BertConfig(11, 16, 2, 4, ffn_dim=24, max_positions=9)
    ids, mask = keras.Input((None,), dtype="int32", name="ids"), keras.Input((None,), dtype="int32", name="mask")
    hidden, pooled = headwise.keras.Bert(config)(ids, real=mask, return_pooled=True)
    return keras.Model([ids, mask], [hidden, keras.layers.Dense(3)(pooled)])


MODELS = {
    "functional": functional,
    "two_inputs": two_inputs,
    "sequential": sequential,
    "layers": layers,
    "bert": bert,
}


def inputs_of(model: keras.Model) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    sizes = {"ids": (2, 7), "memory": (2, 5, 8), "allowed": (2, 7, 5)}
    made = []
    for given in model.inputs:
        shape = sizes.get(given.name, (2, 7, 16))
        if given.name in ("ids", "mask"):
            some = rng.integers(1, 11, (2, 7)) if given.name == "ids" else 1
            made.append(np.where(np.arange(7) < [[7], [4]], some, 0).astype(np.int32))
        else:
            made.append(rng.random(shape) > 0.4 if given.name == "allowed" else rng.normal(size=shape).astype("f4"))
    return made


def outputs_of(model: keras.Model) -> list[np.ndarray]:
    given = [ops.convert_to_tensor(x) for x in inputs_of(model)]
    return [array(x) for x in keras.tree.flatten(model(given if len(given) > 1 else given[0]))]


def randomise(model: keras.Model) -> keras.Model:
    """Weights that no initializer gives, norms and sinks too."""
    rng = np.random.default_rng(1)
    for weight in model.trainable_weights:
        weight.assign(rng.normal(size=weight.shape).astype("f4") * 0.5)
    return model


def check_same(one: keras.Model, other: keras.Model) -> None:
    for x, y in zip(outputs_of(one), outputs_of(other), strict=True):
        assert np.isfinite(x).all()
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_model_files(name: str, suffix: str, tmp_path: Path) -> None:
    model = randomise(MODELS[name]())
    model.save(tmp_path / f"m{suffix}")
    check_same(keras.saving.load_model(tmp_path / f"m{suffix}"), model)


@pytest.mark.parametrize("name", MODELS)
def test_clone_copy_and_pickle(name: str) -> None:
    model = randomise(MODELS[name]())
    if name != "layers":  # whose table is then in each layer
        clone = keras.models.clone_model(model)
        clone.set_weights(model.get_weights())
        check_same(clone, model)
    check_same(pickle.loads(pickle.dumps(model)), model)
    copied = copy.deepcopy(model)
    check_same(copied, model)
    before = outputs_of(model)
    copied.set_weights([np.zeros_like(w) for w in copied.get_weights()])
    np.testing.assert_array_equal(outputs_of(model)[0], before[0])  # nothing is shared


# --- Other processes and backends -------------------------------------------------------------------------------------

LOAD = """
import sys
import numpy as np
import headwise.keras  # nothing else makes the layers known
import keras

assert keras.backend.backend() == sys.argv[1]
for folder in sys.argv[2:]:
    data = np.load(folder + "/data.npz")
    inputs = [keras.ops.convert_to_tensor(data[f"in{i}"]) for i in range(sum(n.startswith("in") for n in data.files))]
    for name in ("m.keras", "m.h5") if folder.endswith("functional") else ("m.keras",):
        model = keras.saving.load_model(folder + "/" + name)
        if name == "m.h5":
            model.set_weights([np.zeros_like(w) for w in model.get_weights()])
            model.load_weights(folder + "/m.weights.h5")
        found = keras.tree.flatten(model(inputs if len(inputs) > 1 else inputs[0]))
        for i, x in enumerate(found):
            np.testing.assert_allclose(keras.ops.convert_to_numpy(x), data[f"out{i}"], rtol=1e-4, atol=1e-4)
"""


@pytest.mark.slow
def test_files_load_in_a_new_process_on_another_backend(tmp_path: Path) -> None:
    """torch → tensorflow → jax → torch: run on each backend, every one writes and reads."""
    models = {"functional": functional} | ({"layers": layers} if BACKEND == "torch" else {})
    for name, make in models.items():
        folder = tmp_path / name
        folder.mkdir()
        model = randomise(make())
        model.save(folder / "m.keras")
        model.save(folder / "m.h5")
        model.save_weights(folder / "m.weights.h5")
        given = {f"in{i}": x for i, x in enumerate(inputs_of(model))}
        np.savez(folder / "data.npz", **given, **{f"out{i}": x for i, x in enumerate(outputs_of(model))})
    other = {"torch": "tensorflow", "tensorflow": "jax", "jax": "torch"}[BACKEND]
    if importlib.util.find_spec(other) is None:
        other = BACKEND
    script = tmp_path / "load.py"
    script.write_text(LOAD, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), other, *(str(tmp_path / name) for name in models)],
        env=os.environ | {"KERAS_BACKEND": other, "PYTHONPATH": str(Path(headwise.__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
