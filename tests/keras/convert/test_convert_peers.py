"""Keras's own attention layers made ours and back: the same weights, outputs and attention scores."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from headwise import keras as hk
from headwise.errors import ArgumentError, DtypeError
from tests.keras.backend import array, tensor
from tests.versions import since

GROUPED = keras.layers.GroupQueryAttention
OWN = keras.layers.MultiHeadAttention
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (OWN, {"num_heads": 4, "key_dim": 4}),
    "odd": (OWN, {"num_heads": 3, "key_dim": 5, "value_dim": 2, "use_bias": False}),
    "output_shape": (OWN, {"num_heads": 2, "key_dim": 4, "output_shape": 8}),
    "dropout": (OWN, {"num_heads": 2, "key_dim": 4, "dropout": 0.5, "seed": 3}),
    "gate": (OWN, {"num_heads": 2, "key_dim": 4, "value_dim": 3, "use_gate": True, "use_bias": False}),
    "grouped": (GROUPED, {"head_dim": 4, "num_query_heads": 4, "num_key_value_heads": 2}),
    "multi_query": (GROUPED, {"head_dim": 3, "num_query_heads": 4, "num_key_value_heads": 1, "use_bias": False}),
    "grouped_gate": (
        GROUPED,
        {"head_dim": 4, "num_query_heads": 4, "num_key_value_heads": 2, "use_gate": True, "use_bias": False},
    ),
}
WIDTHS = {"self": (8, 8, 8), "cross": (8, 6, 10)}  # of query, value and key


def numbers(*shape: int, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def made(kind: str, widths: tuple[int, ...] = (8, 8, 8)) -> Any:
    """A built layer of Keras of which every weight is random."""
    cls, options = KINDS[kind]
    if "use_gate" in options:
        since("keras", "3.14")
    layer = cls(**options)
    layer.build(*[(None, None, width) for width in widths])
    for i, weight in enumerate(layer.weights):
        weight.assign(0.5 * numbers(*weight.shape, seed=i))
    return layer


CALLS: dict[str, dict[str, Any]] = {
    "no_mask": {},
    "causal": {"use_causal_mask": True},
    "mask": {"attention_mask": np.random.default_rng(0).random((2, 5, 7)) < 0.6},
    "padding": {"value_mask": np.arange(7) < np.array([[7], [4]])},
    "all": {
        "attention_mask": np.random.default_rng(0).random((2, 5, 7)) < 0.8,
        "value_mask": np.arange(7) < np.array([[7], [4]]),
        "use_causal_mask": True,
    },
}
for _call in ("mask", "all"):
    CALLS[_call]["attention_mask"][:, :, 0] = True  # a query that may attend to nothing is something else to Keras


@pytest.mark.parametrize(
    ("kind", "widths", "call"),
    [
        *((kind, widths, "all") for kind in KINDS for widths in WIDTHS),
        *(("odd", "cross", call) for call in CALLS if call != "all"),
    ],
)
def test_computes_what_kerass_layer_does(kind: str, widths: str, call: str) -> None:
    theirs = made(kind, WIDTHS[widths])
    ours = hk.MultiHeadAttention.from_keras(theirs)
    assert ours.built
    assert ours.is_fused == (widths == "self")
    query, value, key = (
        tensor(numbers(2, n, width, seed=width + n)) for n, width in zip((5, 7, 7), WIDTHS[widths], strict=True)
    )
    given = {name: x if isinstance(x, bool) else tensor(x) for name, x in CALLS[call].items()}
    expected, scores = theirs(query, value, key, **given, return_attention_scores=True)
    found, weights = ours(query, value, key, **given, return_attention_scores=True)
    np.testing.assert_allclose(array(found), array(expected), atol=1e-5)
    np.testing.assert_allclose(array(weights), array(scores), atol=1e-5)
    np.testing.assert_allclose(array(ours(query, value, key, **given)), array(expected), atol=1e-5)


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_to_keras_and_back(kind: str, widths: str) -> None:
    theirs = made(kind, WIDTHS[widths])
    back = hk.MultiHeadAttention.from_keras(theirs).to_keras()
    assert type(back) is type(theirs)
    mine, own = back.get_config(), theirs.get_config()
    assert {**mine, "output_shape": None} == {**own, "output_shape": None}
    assert [w.path for w in back.weights] == [w.path for w in theirs.weights]
    for a, b in zip(back.weights, theirs.weights, strict=True):
        np.testing.assert_array_equal(array(a), array(b))
    query, value, key = (tensor(numbers(2, n, width)) for n, width in zip((5, 7, 7), WIDTHS[widths], strict=True))
    found, expected = (layer(query, value, key, return_attention_scores=True)[0] for layer in (back, theirs))
    np.testing.assert_allclose(array(found), array(expected), atol=1e-6)


def test_a_frozen_layer_stays_frozen_and_mixed_precision_stays() -> None:
    theirs = OWN(2, 4, dtype="mixed_bfloat16", name="mine", trainable=False)
    theirs.build((None, None, 8), (None, None, 8))
    ours = hk.MultiHeadAttention.from_keras(theirs)
    assert (ours.name, ours.dtype_policy.name, ours.trainable_weights) == ("mine", "mixed_bfloat16", [])
    assert ours.to_keras().get_config() == theirs.get_config()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sliding_window": 3}, r"sliding_window: .*Received: sliding_window=3\. .*masks.window\(2, 2, offset=0\)"),
        ({"use_gate": True}, "use_gate: expected use_bias=False"),
        ({"kernel_regularizer": "l2"}, "kernel_regularizer: expected None.*L2"),
        ({"bias_constraint": "non_neg"}, "bias_constraint: expected None.*NonNeg"),
        ({"activity_regularizer": "l1"}, "activity_regularizer: expected None.*L1"),
        ({"output_shape": 12}, "output_shape: expected the width of the queries, 8. Received: output_shape=12"),
        ({"output_shape": (4, 2)}, r"output_shape=\(4, 2\)"),
        ({"attention_axes": 0}, r"attention_axes=\(0,\)"),
    ],
)
def test_what_there_is_nothing_like_here(options: dict[str, Any], message: str) -> None:
    if {"sliding_window", "use_gate"} & set(options):
        since("keras", "3.14")
    layer = OWN(2, 4, **options)
    layer.build((None, None, 8), (None, None, 8))
    with pytest.raises(ArgumentError, match=message):
        hk.MultiHeadAttention.from_keras(layer)


def test_images_and_other_layers_are_refused() -> None:
    images = OWN(2, 4)
    images.build((None, 3, 3, 8), (None, 3, 3, 8))
    with pytest.raises(ArgumentError, match=r"attention_axes=\(1, 2\)"):
        hk.MultiHeadAttention.from_keras(images)
    columns = OWN(2, 4, attention_axes=1)
    columns.build((None, 3, 3, 8), (None, 3, 3, 8))
    with pytest.raises(ArgumentError, match=r"inputs \[B, S, M\]"):
        hk.MultiHeadAttention.from_keras(columns)
    with pytest.raises(ArgumentError, match="is not built: call the layer once"):
        hk.MultiHeadAttention.from_keras(OWN(2, 4))

    class Mine(OWN):
        pass

    for layer in (keras.layers.Dense(2), Mine(2, 4), hk.MultiHeadAttention(8, 2)):
        with pytest.raises(DtypeError, match=r"expected a keras.layers.MultiHeadAttention or GroupQueryAttention"):
            hk.MultiHeadAttention.from_keras(layer)
    with pytest.raises(ArgumentError, match=r"keras.layers has no equivalent of Rope"):
        hk.positions.Rope.from_keras(made("plain"))
    with pytest.raises(ArgumentError, match="Received: Rope"):
        hk.positions.Rope(4).to_keras()


def test_weights_of_which_some_train_are_refused() -> None:
    theirs = made("plain")
    theirs.query_dense.trainable = False
    with pytest.raises(ArgumentError, match=r"all weights to be trainable, or none. Received: 6 of 8"):
        hk.MultiHeadAttention.from_keras(theirs)
    ours = hk.MultiHeadAttention.from_keras(made("plain"))
    ours.out.trainable = False
    with pytest.raises(ArgumentError, match="Received: 2 of 4"):
        ours.to_keras()


def test_quantised_weights_are_refused() -> None:
    layer = made("plain")
    layer.value_dense.enable_lora(2)
    with pytest.raises(ArgumentError, match="value: expected a layer without LoRA"):
        hk.MultiHeadAttention.from_keras(layer)
    layer = made("plain")
    layer.output_dense.quantize("int8")
    with pytest.raises(ArgumentError, match="output: expected weights of floats"):
        hk.MultiHeadAttention.from_keras(layer)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"projection": "shared"}, "projection"),
        ({"output_bias": False}, "output_bias"),
        ({"qk_norm": "rms"}, "qk_norm"),
        ({"softcap": 3.0}, "softcap"),
        ({"sinks": True}, "sinks"),
        ({"scale": 0.3}, "scale"),
        ({"positions": hk.positions.Rope(4)}, "positions"),
        ({"gate": True}, "gate without a bias"),
        ({"num_kv_heads": 1, "value_head_dim": 6}, "value_head_dim with shared key heads"),
        ({"kernel": "chunked"}, "kernel"),
    ],
)
def test_what_keras_has_nothing_like(options: dict[str, Any], name: str) -> None:
    layer = hk.MultiHeadAttention(8, 2, **options)
    layer.build()
    with pytest.raises(ArgumentError, match=f"keras.layers has no equivalent of this layer's {name}"):
        layer.to_keras()


def test_a_gate_needs_a_keras_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = hk.MultiHeadAttention(8, 2, bias=False, gate=True)
    layer.build((None, None, 8))
    monkeypatch.setattr(OWN, "__init__", lambda self, num_heads, key_dim: None)
    with pytest.raises(ArgumentError, match=r"no equivalent of this layer's gate; Keras 3.14 has"):
        layer.to_keras()


def test_to_keras_without_weights_yet() -> None:
    with pytest.raises(ArgumentError, match="is not built"):
        hk.MultiHeadAttention(8, 2).to_keras()
    layer = hk.MultiHeadAttention(8, 2, scale=0.5)  # 1 / √4 is Keras's own
    layer.build()
    assert isinstance(layer.to_keras(), OWN)
