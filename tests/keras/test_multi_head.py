"""MultiHeadAttention: the same numbers as its twin, whatever its options; its arguments; what bad input gets."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import torch

import headwise
from headwise import masks, nn
from headwise.errors import ArgumentError, DtypeError, MaskError, ShapeError
from headwise.keras import MultiHeadAttention
from tests.keras.backend import cases, tensor
from tests.keras.parity import assert_same, close, draw, twins

M, H, S, K = 24, 6, 7, 9
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"num_kv_heads": 2},
    "sinks and gate": {"sinks": True, "gate": True, "num_kv_heads": 3},
    "shared": {"projection": "shared"},
}


def pair(**options: Any) -> tuple[MultiHeadAttention, nn.MultiHeadAttention]:
    return MultiHeadAttention(M, H, **options), nn.MultiHeadAttention(M, H, **options)


@pytest.mark.parametrize("name", cases(OPTIONS, "grouped"))
def test_cross_attention_is_the_twins(name: str) -> None:
    layer, module = pair(**OPTIONS[name])
    allowed = np.random.default_rng(0).random((3, S, K)) > 0.4
    assert_same(
        *(layer, module, draw(3, S, M), draw(3, K, M, seed=1)),
        ours={"attention_mask": tensor(allowed)},  # [B, Q, K], as in Keras
        theirs={"mask": torch.tensor(allowed)[:, None].expand(3, H, S, K)},
    )


@pytest.mark.every_backend
def test_keys_and_values_of_other_widths() -> None:
    layer, module = pair(kdim=10, vdim=14, num_kv_heads=2)
    twins(layer, module)
    q, k, v = draw(2, S, M), draw(2, K, 10), draw(2, K, 14)
    expected = module(*map(torch.tensor, (q, k, v)), mask=masks.lengths([K, 3]))
    close(layer(tensor(q), tensor(v), tensor(k), attention_mask=masks.lengths([K, 3])), expected)


def test_keys_and_values_that_differ_share_one_matrix() -> None:
    layer, module = pair(num_kv_heads=2)
    twins(layer, module)
    q, k, v = (draw(2, S, M, seed=i) for i in range(3))
    close(layer(tensor(q), tensor(v), tensor(k)), module(*map(torch.tensor, (q, k, v))))


@pytest.mark.parametrize("kernel", ["auto", "plain", "chunked", "banded", "block_sparse"])
def test_scores_are_returned_whatever_the_kernel(kernel: str) -> None:
    layer = MultiHeadAttention(M, H, num_kv_heads=2, kernel=kernel)
    x, given = tensor(draw(2, S, M)), {"attention_mask": masks.window(2, 0)}
    out, weights = layer(x, **given, return_attention_scores=True)
    assert tuple(weights.shape) == (2, H, S, S)
    close(out, layer(x, **given))
    module = layer.to_torch(kernel="auto")
    _, record = module(torch.tensor(draw(2, S, M)), mask=masks.window(2, 0), record=True)
    close(weights, record.weights())


def test_use_causal_mask_is_keras_own_and_joins_others() -> None:
    layer, keras_layer = MultiHeadAttention(M, H), keras.layers.MultiHeadAttention(H, M // H)
    x, memory = tensor(draw(2, 5, M)), tensor(draw(2, 8, M, seed=1))
    keras_layer(x, memory)
    layer = MultiHeadAttention.from_keras(keras_layer)
    # The first query stands at the first key, where headwise's masks.causal() puts the last at the last.
    close(layer(x, memory, use_causal_mask=True), keras_layer(x, memory, use_causal_mask=True))
    allowed = np.random.default_rng(0).random((2, 5, 8)) > 0.3
    allowed[:, :, 0] = True
    for given in (allowed, allowed.astype("int32")):
        ours = layer(x, memory, attention_mask=tensor(given), use_causal_mask=True)
        close(ours, keras_layer(x, memory, attention_mask=tensor(allowed), use_causal_mask=True))
    both = layer(x, memory, attention_mask=masks.window(None, 1, offset=0), use_causal_mask=True)
    close(both, layer(x, memory, use_causal_mask=True))


@pytest.mark.parametrize("mask", [None, masks.causal(), masks.window(2, 0), masks.window(1, 1)])
@pytest.mark.parametrize("kernel", ["auto", "chunked"])
def test_length_and_batch_need_not_be_known(mask: Any, kernel: str) -> None:
    layer = MultiHeadAttention(M, H, kernel=kernel, positions=headwise.keras.positions.Rope(4))
    inputs = keras.Input((None, M))
    out, weights = layer(inputs, attention_mask=mask, return_attention_scores=True)
    assert (out.shape, weights.shape) == ((None, None, M), (None, H, None, None))
    model = keras.Model(inputs, layer(inputs, attention_mask=mask))
    module = layer.to_torch(kernel="auto")
    for shape in ((1, 3, M), (2, 70, M)):
        close(model.predict(draw(*shape), verbose=0), module(torch.tensor(draw(*shape)), mask=mask))


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"num_heads": 5}, "dim: expected a multiple of num_heads=5. Received: dim=24"),
            ({"kernel": "flash"}, "kernel: expected one of 'auto'"),
            ({"projection": "shared", "num_kv_heads": 2}, "expected num_kv_heads=6. Received: num_kv_heads=2"),
            ({"positions": nn.positions.Rope(4)}, "expected a scheme of headwise.keras.positions"),
            ({"positions": headwise.keras.positions.Rope(8)}, "head_dim"),
        ],
    )
    def test_options(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ArgumentError, match=message):
            MultiHeadAttention(**({"dim": M, "num_heads": H} | options))

    @pytest.mark.parametrize("symbolic", [True, False])
    def test_shapes(self, symbolic: bool) -> None:
        layer = MultiHeadAttention(M, H)

        def given(*shape: int | None) -> Any:
            return keras.Input(shape[1:]) if symbolic else tensor(np.zeros(shape))

        with pytest.raises(ShapeError, match=r"query: expected \[B, S, 24\]. Received: query.shape=\((None|2), 7, 8\)"):
            layer(given(2, S, 8))
        with pytest.raises(ShapeError, match="value: expected the same number of positions as key"):
            layer(given(2, S, M), given(2, 5, M), given(2, 6, M))
        with pytest.raises(ArgumentError, match="key: expected a value too"):
            layer(given(2, S, M), key=given(2, 5, M))
        with pytest.raises(ArgumentError, match="position_ids: expected a layer with positions="):
            layer(given(2, S, M), position_ids=np.arange(S))

    def test_masks(self) -> None:
        layer, x = MultiHeadAttention(M, H), tensor(draw(2, S, M))
        with pytest.raises(ShapeError, match=r"attention_mask: expected \[B, Q, K\] = \[2, 7, 7\]"):
            layer(x, attention_mask=tensor(np.ones((H, S, S), bool)))
        with pytest.raises(ShapeError, match=r"Padding \[B, K\] goes in value_mask="):
            layer(x, attention_mask=tensor(np.ones((2, S), bool)))
        with pytest.raises(ShapeError, match=r"padding: expected \[B, K\]"):
            layer(x, query_mask=tensor(np.ones((2, S - 1), bool)))
        with pytest.raises(DtypeError, match="A tensor that is added to the scores is a bias"):
            layer(x, attention_mask=tensor(np.zeros((S, S), np.float32)))
        with pytest.raises(MaskError, match="must not exceed the 7 keys"):
            layer(x, attention_mask=masks.lengths([S, 99]))
