"""The layers inside keras.layers.TimeDistributed, which calls them as no model does: each step is a call of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest

from headwise import keras as hk
from headwise.keras.multi_head_latent import MultiHeadLatentAttention
from tests.keras.backend import array, cases, tensor
from tests.keras.modules import MLA
from tests.keras.parity import close, draw

LAYERS: dict[str, Callable[[], Any]] = {
    "MultiHeadAttention": partial(hk.MultiHeadAttention, 8, 2),
    "MultiHeadLatentAttention": partial(MultiHeadLatentAttention, 8, 2, q_rank=7, **MLA),
    "EncoderLayer": partial(hk.EncoderLayer, 8, 2),
    "LatentAttention": partial(hk.LatentAttention, 3, 8, 8, 2),
    "FeedForward": partial(hk.FeedForward, 8),
}


def steps() -> np.ndarray:
    """Draw two examples of three steps of five tokens; the last tokens of two steps are padding."""
    x = np.array(draw(2, 3, 5, 8), np.float32)
    x[0, 1, 3:], x[1, 0, 1:] = 0.0, 0.0
    return x


@pytest.mark.parametrize("name", cases(LAYERS, "MultiHeadAttention"))
@pytest.mark.parametrize("masked", [False, True])
def test_each_step_is_computed_alone_and_its_padding_is_kept(name: str, masked: bool) -> None:
    layer, x = LAYERS[name](), steps()
    symbol = keras.Input((3, 5, 8))
    inner = keras.layers.Masking()(symbol) if masked else symbol
    model = keras.Model(symbol, keras.layers.TimeDistributed(layer)(inner))
    found, real = array(model(tensor(x))), x.any(-1)
    assert model.output_shape[1:] == found.shape[1:]
    for step in range(3):
        told = {"query_mask": tensor(real[:, step])} if masked and name != "FeedForward" else {}
        close(found[:, step], layer(tensor(x[:, step]), **told))


def test_shapes_are_known_before_a_call() -> None:
    assert hk.DecoderLayer(8, 2, memory_dim=6).compute_output_shape((2, 7, 8), (2, 5, 6)) == (2, 7, 8)
    assert hk.LatentAttention(3, 8, 6, 2).compute_output_shape((None, None, 6)) == (None, 3, 8)


def test_a_sequential_model_passes_its_mask() -> None:
    layer, x = hk.EncoderLayer(8, 2), steps()[0]
    model = keras.Sequential([keras.layers.Masking(), layer])
    close(model.call(tensor(x)), layer(tensor(x), query_mask=tensor(x.any(-1))))
    close(model(tensor(x)), layer(tensor(x), query_mask=tensor(x.any(-1))))
