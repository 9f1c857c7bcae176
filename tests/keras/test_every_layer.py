"""What every layer promises: any batch and length, low precision, dropout in training alone, widths of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import pytest

from headwise import keras as hk
from headwise.errors import ShapeError
from headwise.keras.cross import CrossLayer
from headwise.keras.multi_head_latent import MultiHeadLatentAttention
from tests.keras.backend import array, cases, tensor
from tests.keras.modules import MLA
from tests.keras.parity import close, draw

# What makes a layer, and the widths of its inputs.
LAYERS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "MultiHeadAttention": (partial(hk.MultiHeadAttention, 8, 2), (8,)),
    "MultiHeadLatentAttention": (partial(MultiHeadLatentAttention, 8, 2, q_rank=7, **MLA), (8,)),
    "EncoderLayer": (partial(hk.EncoderLayer, 8, 2), (8,)),
    "DecoderLayer": (partial(hk.DecoderLayer, 8, 2, memory_dim=6), (8, 6)),
    "CrossLayer": (partial(CrossLayer, 8, 2, memory_dim=6), (8, 6)),
    "LatentAttention": (partial(hk.LatentAttention, 3, 8, 6, 2, num_reads=2, self_layers=1), (6,)),
    "LatentAttention, read_out": (partial(hk.LatentAttention, 3, 8, 6, 2, read_out=True, output_dim=4), (4, 6)),
    "FeedForward": (partial(hk.FeedForward, 8), (8,)),
}


def inputs(widths: tuple[int, ...], batch: int = 2, lengths: tuple[int, int] = (7, 5)) -> list[Any]:
    return [tensor(draw(batch, length, width)) for length, width in zip(lengths, widths, strict=False)]


def results(layer: Any, given: list[Any]) -> list[Any]:
    """The output, and the weights of each attention within."""
    if isinstance(layer, hk.FeedForward):
        return [layer(*given)]
    found: list[Any] = keras.tree.flatten(layer(*given, return_attention_scores=True))
    return found


@pytest.mark.parametrize("name", cases(LAYERS, "DecoderLayer"))
def test_batch_and_length_need_not_be_known(name: str) -> None:
    make, widths = LAYERS[name]
    layer, symbols = make(), [keras.Input((None, width)) for width in widths]
    found = results(layer, symbols)
    model, shapes = keras.Model(symbols, found), []
    for given in (inputs(widths), inputs(widths, 3, (4, 9))):
        expected = results(layer, given)
        for x, y in zip(keras.tree.flatten(model(given)), expected, strict=True):
            close(x, y)
        shapes.append([tuple(y.shape) for y in expected])
    for symbol, first, second in zip(found, *shapes, strict=True):
        known = [one if one == other else None for one, other in zip(first, second, strict=True)]
        assert list(symbol.shape) == known


@pytest.mark.parametrize("name", cases(LAYERS, "MultiHeadAttention", "FeedForward"))
def test_a_mixed_policy(name: str) -> None:
    make, widths = LAYERS[name]
    mixed, whole, given = make(dtype="mixed_bfloat16"), make(), inputs(widths)
    out, *weights = results(mixed, given)
    assert keras.backend.standardize_dtype(out.dtype) == "bfloat16"
    assert {keras.backend.standardize_dtype(x.dtype) for x in weights} <= {"float32"}
    assert {weight.dtype for weight in mixed.trainable_weights} == {"float32"}
    for x in weights:
        close(keras.ops.sum(x, -1), keras.ops.ones(x.shape[:-1]))
    whole.build(None)
    whole.set_weights(mixed.get_weights())
    close(keras.ops.cast(out, "float32"), whole(*given), 0.1)


DROPPED = [
    *((name, "dropout") for name in LAYERS),
    *(("EncoderLayer", option) for option in ("attention_dropout", "ffn_dropout", "drop_path")),
    ("DecoderLayer", "attention_dropout"),
]


@pytest.mark.parametrize("case", cases(DROPPED, ("MultiHeadAttention", "dropout")), ids=" ".join)
def test_dropout_is_of_training_and_of_the_seed(case: tuple[str, str]) -> None:
    name, option = case
    make, widths = LAYERS[name]
    given = inputs(widths, 8, (3, 4))
    first, same, other = (make(seed=seed, **{option: 0.5}) for seed in (4, 4, 5))
    for layer in (first, same, other):
        layer.build(None)
        for weight, value in zip(layer.trainable_variables, first.trainable_variables, strict=True):
            weight.assign(value)
    calm = array(first(*given))
    close(same(*given, training=False), calm, 0)
    dropped = array(first(*given, training=True))
    close(same(*given, training=True), dropped, 0)
    for another in (calm, array(other(*given, training=True)), array(first(*given, training=True))):
        assert (another != dropped).any()


@pytest.mark.parametrize("name", LAYERS)
def test_other_widths_are_refused(name: str) -> None:
    make, widths = LAYERS[name]
    layer, right = make(), [keras.Input((None, width)) for width in widths]
    for place, width in enumerate(widths):
        for wrong in (keras.Input((None, width + 2)), tensor(draw(2, 5, width + 2))):
            given = inputs(widths) if isinstance(wrong, type(inputs(widths)[0])) else list(right)
            given[place] = wrong
            with pytest.raises(ShapeError, match=rf"(query|value|inputs): expected \[(B, S|\.\.\.), {width}\]"):
                layer(*given)
