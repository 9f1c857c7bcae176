"""`headwise.watch` on Keras models: the same records on every backend, and a model that is left as it was."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import keras
import numpy as np
import pytest
import torch
from keras import layers, ops

import headwise
from headwise import masks
from headwise.errors import ArgumentError, DtypeError, RecordError
from headwise.keras import MultiHeadAttention, positions
from tests.keras.backend import BACKEND, array, cases, tensor

TIGHT = {"rtol": 0, "atol": 1e-6}


def tokens(batch: int = 2, length: int = 5, width: int = 16, seed: int = 0) -> Any:
    return tensor(np.random.default_rng(seed).normal(size=(batch, length, width)))


def weights_of(seen: Any, number: int = 0) -> np.ndarray:
    return seen.records[number].weights().numpy()


def functional(*attentions: keras.layers.Layer) -> keras.Model:
    inputs = x = keras.Input((None, 16))
    for attention in attentions:
        x = x + attention(x, x)
    return keras.Model(inputs, x)


class Stack(keras.Model):
    """Layers that are attributes, one of them private, and one that is made on the first call."""

    def __init__(self, count: int = 2) -> None:
        super().__init__()
        self.blocks = [MultiHeadAttention(16, 4) for _ in range(count)]
        self._last = layers.MultiHeadAttention(2, 8, name="reader")
        self.late: Any = None

    def build(self, input_shape: object) -> None:
        self.late = MultiHeadAttention(16, 2)
        self.built = True

    def call(self, x: Any, training: bool = False) -> Any:
        for block in self.blocks:
            x = x + block(x)
        return self.late(self._last(x, x))


# The weights of the layers of this package.

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "causal": ({}, {"use_causal_mask": True}),
    "a mask": ({"num_kv_heads": 2}, {"attention_mask": masks.window(2, 0)}),
    "a mask and padding": ({}, {"attention_mask": masks.causal(), "value_mask": [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]}),
    "empty rows": ({}, {"attention_mask": np.tril(np.ones((5, 5), bool), -1)}),
    "another mask a head": ({}, {"attention_mask": np.random.default_rng(1).random((2, 4, 5, 5)) < 0.5}),
    "RoPE": ({"positions": lambda: positions.Rope(4), "num_kv_heads": 1}, {"use_causal_mask": True}),
    "ALiBi": ({"positions": lambda: positions.Alibi(4)}, {"use_causal_mask": True}),
    "T5": ({"positions": lambda: positions.T5Buckets(4)}, {}),
    "softcap and sinks": ({"softcap": 2.0, "sinks": True, "qk_norm": "rms", "scale": 0.3}, {}),
    "chunked": ({"kernel": "chunked"}, {"use_causal_mask": True}),
}


@pytest.mark.parametrize("case", cases(CASES, "a mask and padding", "another mask a head", "RoPE", "chunked"))
def test_the_weights_are_those_that_the_layer_returns(case: str) -> None:
    options, given = CASES[case]
    options = {name: value() if callable(value) else value for name, value in options.items()}
    given = {name: tensor(np.array(x, bool)) if isinstance(x, list | np.ndarray) else x for name, x in given.items()}
    layer, x = MultiHeadAttention(16, 4, **options), tokens()
    out, weights = layer(x, return_attention_scores=True, **given)
    with headwise.watch(layer) as seen:
        again = layer(x, **given)
    (record,) = seen.records
    np.testing.assert_allclose(record.weights().numpy(), array(weights), **TIGHT)
    np.testing.assert_allclose(array(again), array(out), rtol=0, atol=1e-5)
    assert record.site.heads == 4
    assert record.site.key_heads == layer.num_kv_heads
    assert record.site.kind == "self"
    assert record.site.name == "MultiHeadAttention"


def test_masks_stay_what_they_are_and_tensors_become_masks() -> None:
    layer, x = MultiHeadAttention(16, 4), tokens()
    real = tensor(np.array([[True] * 3 + [False] * 2, [True] * 5]))
    with headwise.watch(layer) as seen:
        layer(x, attention_mask=masks.causal(), value_mask=real)
        layer(x, attention_mask=tensor(np.tril(np.ones((5, 5), bool))))
        layer(x, attention_mask=tensor(np.ones((5, 5), bool)))
    both, dense, nothing = (record.mask for record in seen.records)
    assert repr(both) == "causal(offset=0) & padding([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])"
    assert repr(dense) == "causal(offset=0)"
    assert nothing is None
    assert [record.site.causal for record in seen.records] == [True, True, False]


def test_cross_attention_is_told_from_self_attention() -> None:
    layer, x, memory = MultiHeadAttention(16, 4), tokens(), tokens(length=5, seed=1)
    with headwise.watch(layer) as seen:
        layer(x)
        layer(x, x)
        layer(x, memory)
    assert [record.site.kind for record in seen.records] == ["self", "self", "cross"]
    assert [record.site.call for record in seen.records] == [0, 1, 2]


@pytest.mark.every_backend
def test_sixteen_bits_are_kept() -> None:
    layer, x = MultiHeadAttention(16, 4, dtype="mixed_bfloat16"), tokens()
    _, weights = layer(x, return_attention_scores=True)
    with headwise.watch(layer) as seen:
        layer(x)
    assert seen.records[0].q.dtype == torch.bfloat16
    np.testing.assert_allclose(weights_of(seen), array(weights), rtol=0, atol=1e-2)


# The layers of Keras.


@pytest.mark.parametrize("given", cases(["plain", "causal", "mask", "empty rows", "both"], "both"))
@pytest.mark.parametrize("grouped", [False, True])
def test_multi_head_attention_of_keras(grouped: bool, given: str) -> None:
    layer = layers.GroupQueryAttention(4, 4, 2) if grouped else layers.MultiHeadAttention(4, 4)
    x, mask = tokens(), np.ones((2, 5, 5), bool)
    mask[0, :, 3:] = False
    mask[1, 2] = given != "empty rows"
    arguments = {
        "plain": {},
        "causal": {"use_causal_mask": True},
        "mask": {"attention_mask": tensor(mask)},
        "empty rows": {"attention_mask": tensor(mask)},
        "both": {"attention_mask": tensor(mask), "use_causal_mask": True},
    }[given]
    with headwise.watch(layer) as seen:
        out = layer(x, x, **arguments)
    _, weights = layer(x, x, return_attention_scores=True, **arguments)
    (record,) = seen.records
    assert seen.coverage().sites[0].how == f"keras.layers.{'GroupQueryAttention' if grouped else 'MultiHeadAttention'}"
    assert record.k.shape[1] == (2 if grouped else 4)
    assert record.site.causal == (given in ("causal", "both"))
    attending = slice(None) if given != "empty rows" else [0, 1, 3, 4]  # there Keras's own paths do not agree
    np.testing.assert_allclose(record.weights().numpy()[:, :, attending], array(weights)[:, :, attending], **TIGHT)
    kernel = torch.tensor(array(layer._output_dense.kernel))
    with headwise.watch(layer, values=True) as seen:
        layer(x, x, **arguments)
    (record,) = seen.records
    torch.testing.assert_close(record.output_weight, kernel)
    values = record.v.repeat_interleave(4 // record.v.shape[1], 1)
    y = torch.einsum("bhqk,bhke,hem->bqm", record.weights(), values, kernel) + torch.tensor(
        array(layer._output_dense.bias)
    )
    np.testing.assert_allclose(y.numpy(), array(out), rtol=0, atol=1e-5)


def test_the_weights_are_those_before_dropout() -> None:
    layer, x = layers.MultiHeadAttention(4, 4, dropout=0.5), tokens()
    _, weights = layer(x, x, return_attention_scores=True)
    with headwise.watch(layer) as seen:
        layer(x, x, training=True)
    np.testing.assert_allclose(weights_of(seen), array(weights), **TIGHT)
    assert seen.records[0].dropout == 0.5


@pytest.mark.every_backend
def test_padding_of_an_embedding() -> None:
    inputs = keras.Input((None,), dtype="int32")
    x = layers.Embedding(9, 16, mask_zero=True)(inputs)
    y = MultiHeadAttention(16, 4, name="ours")(x)
    model = keras.Model(inputs, layers.MultiHeadAttention(4, 4, name="theirs")(y, y))
    with headwise.watch(model, tokens=[["a", "b", "c"], ["d", "e", "f"]]) as seen:
        model(tensor(np.array([[3, 4, 0], [5, 6, 7]], np.int32)))
    assert {record.site.name for record in seen.records} == {"ours", "theirs"}
    assert seen["ours"].weights()[0, :, :2, 2].eq(0).all()
    assert seen["theirs"].weights()[0, :, :2, 2].eq(0).all()
    assert seen["ours"].weights()[1, :, :, 2].gt(0).all()
    assert seen.row_labels(seen["ours"], 1) == ("d", "e", "f")


@pytest.mark.every_backend
@pytest.mark.parametrize("causal", [False, True])
def test_the_dot_product_attention_layer(causal: bool) -> None:
    layer, x, memory = layers.Attention(use_scale=True), tokens(), tokens(length=5, seed=1)
    real = tensor(np.array([[True, True, False, False, False], [True] * 5]))
    given = {"mask": [None, real], "use_causal_mask": causal}
    _, weights = layer([x, memory], return_attention_scores=True, **given)
    layer.scale.assign(0.5)
    with headwise.watch(layer) as seen:
        _, weights = layer([x, memory], return_attention_scores=True, **given)
    np.testing.assert_allclose(weights_of(seen)[:, 0], array(weights), **TIGHT)
    assert seen.records[0].scale == 0.5
    assert seen.records[0].site.kind == "cross"


def test_additive_attention_is_refused() -> None:
    layer, x = layers.AdditiveAttention(), tokens()
    with headwise.watch(layer) as seen:
        layer([x, x])
    (site,) = seen.coverage().refused
    assert "not a product q kᵀ" in site.how
    with pytest.raises(RecordError, match="1 place that computes it was not"):
        _ = seen[0]


class Doubled(layers.MultiHeadAttention):
    """Overrides what Keras says may be overridden, and computes something else."""

    def _compute_attention(self, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        out, weights = super()._compute_attention(query, key, value, *args, **kwargs)
        return out * 2, weights


class Turned(layers.MultiHeadAttention):
    """Overrides it too, and is attention still: of other queries."""

    def _compute_attention(self, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        return ops.dot_product_attention(query, key, value, scale=self._inverse_sqrt_key_dim), None


def test_what_overrides_the_computation_is_only_believed_where_it_explains_the_output() -> None:
    model, x = functional(Doubled(4, 4, name="doubled"), Turned(4, 4, name="turned")), tokens()
    with headwise.watch(model) as seen:
        model(x)
    doubled, turned = seen.coverage().sites
    assert (doubled.name, doubled.status) == ("doubled", "refused")
    assert "could not be explained" in doubled.how
    assert (turned.name, turned.status, turned.calls) == ("turned", "seen", 1)


class ByOperation(layers.Layer):
    def call(self, x: Any) -> Any:
        x = ops.reshape(x, (-1, x.shape[1], 4, 4))
        return ops.dot_product_attention(x, x[:, :, :2], x[:, :, :2], is_causal=True)


class HandAttention(layers.Layer):
    def call(self, x: Any) -> Any:
        return ops.matmul(ops.softmax(ops.matmul(x, ops.swapaxes(x, 1, 2)), axis=-1), x)


@pytest.mark.every_backend
def test_the_operation_of_keras() -> None:
    x, layer = tokens(), ByOperation()
    with headwise.watch(layer) as seen:
        layer(x)
    (record,) = seen.records
    assert record.shape == (2, 4, 5, 5)
    assert record.k.shape[1] == 2
    assert record.site.causal
    assert seen.coverage().sites[0].how == "keras.ops.dot_product_attention"


@pytest.mark.every_backend
def test_what_is_not_recognised_is_missed() -> None:
    layer, x = HandAttention(), tokens()
    with headwise.watch(layer) as seen:
        layer(x)
    (site,) = seen.coverage().sites
    if BACKEND == "torch":  # where every operation can be followed
        assert site.status == "seen"
        return
    assert site.status == "missed"
    assert site.name == "HandAttention"
    dense = layers.Dense(3)
    with headwise.watch(dense) as seen:
        pass
    assert seen.coverage().notes == ("no attention was seen: the Dense did not run inside the context",)
    with headwise.watch(dense) as seen:
        dense(x)
    assert "keras.ops.dot_product_attention, in every layer of the Dense" in seen.coverage().notes[0]


# Names, and what is asked for.


def test_layers_go_by_their_names_in_a_graph_and_by_attributes_elsewhere() -> None:
    inner = functional(layers.MultiHeadAttention(4, 4, name="first"), layers.MultiHeadAttention(4, 4, name="second"))
    inner.name = "encoder"
    model = keras.Sequential([inner, Stack()])
    model.layers[1].name = "stack"
    x = tokens()
    with headwise.watch(model) as seen:
        model(x)
    assert seen.layers == [
        *("encoder.first", "encoder.second"),
        *("stack.blocks.0", "stack.blocks.1", "stack.reader", "stack.late"),
    ]
    assert [record.site.layer for record in seen.records][2:4] == [0, 1]
    with headwise.watch(model, only=["encoder", "stack.blocks.1"]) as seen:
        model(x)
    assert seen.layers == ["encoder.first", "encoder.second", "stack.blocks.1"]


@pytest.mark.every_backend
def test_options() -> None:
    layer, x = MultiHeadAttention(16, 4), tokens()
    layer.build()
    with headwise.watch(layer, values=True, dtype=torch.float16, every=2) as seen:
        for _ in range(3):
            layer(x)
    assert len(seen.records) == 2
    assert seen.records[1].q.dtype == torch.float16
    kernel = torch.tensor(array(layer.out.kernel)).reshape(4, 4, 16)
    torch.testing.assert_close(seen.records[0].output_weight, kernel.half())
    with pytest.raises(RecordError, match="max_bytes"), headwise.watch(layer, max_bytes=100):
        layer(x)
    with pytest.raises(ArgumentError, match="every must be"):
        headwise.watch(layer, every=0)
    with pytest.raises(DtypeError, match=r"expected a torch\.nn\.Module"):
        headwise.watch(3)
    if BACKEND != "torch":
        with pytest.raises(ArgumentError, match="gradients: expected False"):
            headwise.watch(layer, gradients=True)


@pytest.mark.every_backend
def test_statistics_without_queries_and_keys() -> None:
    layer, x = MultiHeadAttention(16, 4), tokens()
    with headwise.watch(layer) as whole, headwise.watch(layer, statistics={"top": {"top": 2}}, keep=False) as seen:
        layer(x)
    assert dict(seen[0].statistics()).keys() == {"lse", "top"}
    assert all(map(torch.equal, seen[0].top_k(2), whole[0].top_k(2)))
    with pytest.raises(RecordError, match="were not kept"):
        seen[0].weights()


# Compiled functions.


@pytest.mark.every_backend
def test_predict_runs_eagerly_and_is_compiled_again_afterwards() -> None:
    model, x = functional(layers.MultiHeadAttention(4, 4, name="attention")), array(tokens())
    model.compile("sgd", "mse")
    plain = model.predict(x, verbose=0)
    before = model.predict_function, model.run_eagerly
    with headwise.watch(model) as seen:
        watched = model.predict(x, verbose=0, batch_size=1)
    np.testing.assert_allclose(watched, plain, rtol=0, atol=1e-5)
    assert len(seen.records) == 2
    assert seen.call(1)["attention"].shape == (1, 4, 5, 5)
    assert (model.predict_function, model.run_eagerly) == before
    notes = " ".join(seen.coverage().notes)
    assert ("ran eagerly" in notes) == (BACKEND != "torch")
    with headwise.watch(model) as seen:
        model(x)
    assert not seen.coverage().notes


@pytest.mark.every_backend
def test_fit_is_seen() -> None:
    model, x = Stack(0), array(tokens(length=3))
    model.compile("sgd", "mse")
    with headwise.watch(model) as seen:
        model.fit(x, x, epochs=2, verbose=0)
    assert [record.site.name for record in seen.records] == ["reader", "late"] * 2
    assert not model.run_eagerly
    with headwise.watch(model) as seen:
        model.compile("sgd", "mse", run_eagerly=True)
        model.evaluate(x, x, verbose=0)
    assert model.run_eagerly
    assert len(seen.records) == 2


@pytest.mark.every_backend
@pytest.mark.skipif(BACKEND == "torch", reason="torch.compile is made to run eagerly")
def test_what_somebody_else_compiled_is_refused() -> None:
    model, x = (
        functional(layers.MultiHeadAttention(4, 4, name="theirs"), MultiHeadAttention(16, 4, name="ours")),
        tokens(),
    )
    if BACKEND == "jax":
        import jax

        compiled = jax.jit(lambda x: model(x))
    else:
        import tensorflow as tf

        compiled = tf.function(lambda x: model(x))
    with headwise.watch(model) as seen:
        found = compiled(x)
    assert [site.name for site in seen.coverage().refused] == ["theirs", "ours"]
    assert all("ran inside a compiled function" in site.how for site in seen.coverage().refused)
    assert not seen.records
    np.testing.assert_allclose(array(found), array(model(x)), rtol=0, atol=1e-5)


@pytest.mark.skipif(BACKEND != "torch", reason="only torch tells of gradients")
def test_gradients() -> None:
    layer, x = MultiHeadAttention(16, 4), tokens()
    with headwise.watch(layer, gradients=True) as seen:
        layer(x).sum().backward()
    assert seen.records[0].grad.shape == (2, 4, 5, 4)


# What is left behind: nothing.


@pytest.mark.every_backend
def test_the_model_is_left_as_it_was() -> None:
    layer, x = layers.MultiHeadAttention(4, 4), tokens()
    layer(x, x)
    dot = layers.Attention()
    before = keras.layers.Layer.__call__, set(vars(layer)), keras.src.backend.nn.dot_product_attention

    def fails() -> None:
        with headwise.watch(layer), headwise.watch(dot):
            layer(x, x)
            dot([x, x])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    after = keras.layers.Layer.__call__, set(vars(layer)), keras.src.backend.nn.dot_product_attention
    assert after == before
    assert "_apply_scores" not in vars(dot)
    with headwise.watch(layer), pytest.raises(Exception, match=r"(?s)."):
        layer(tokens(width=3), x)
    assert (keras.layers.Layer.__call__, set(vars(layer))) == before[:2]


def test_a_model_that_is_built_inside_is_not_one_that_ran() -> None:
    layer = layers.MultiHeadAttention(4, 4, name="attention")
    with headwise.watch(layer) as seen:
        functional(layer)
    assert not seen.records
    assert not seen.coverage().sites


def test_two_watches_see_their_own() -> None:
    first, second, x = MultiHeadAttention(16, 4), MultiHeadAttention(16, 2), tokens()
    with headwise.watch(first) as one, headwise.watch(second) as two:
        first(x)
        second(x)
    assert [record.shape[1] for record in one.records] == [4]
    assert [record.shape[1] for record in two.records] == [2]


# What is seen is what headwise works with.


def test_importing_headwise_imports_no_keras() -> None:
    code = "import headwise, sys; assert not {'keras', 'tensorflow', 'jax'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
