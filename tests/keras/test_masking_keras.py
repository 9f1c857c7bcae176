"""Keras's own masks, of `Embedding(mask_zero=True)`, go through stacks: padding is as if it were not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras.src.backend import get_keras_mask

from headwise import masks
from headwise.keras import DecoderLayer, EncoderLayer, FeedForward, LatentAttention, MultiHeadAttention, positions
from tests.keras.backend import array, tensor
from tests.keras.parity import close

M, WORDS = 8, 11
IDS = np.array([[1, 2, 3, 4, 0, 0, 0], [5, 6, 7, 8, 9, 10, 1]], np.int32)
REAL = IDS != 0


def embedding(**options: Any) -> keras.layers.Embedding:
    return keras.layers.Embedding(WORDS, M, mask_zero=True, **options)


def layers() -> list[keras.layers.Layer]:
    rope = MultiHeadAttention(M, 2, positions=positions.Rope(4))
    return [EncoderLayer(M, 2), MultiHeadAttention(M, 2), FeedForward(M), EncoderLayer(M, attention=rope, norm="rms")]


def sequential() -> keras.Model:
    return keras.Sequential([embedding(), *layers()])


def functional() -> keras.Model:
    ids = keras.Input((None,), dtype="int32")
    x = embedding()(ids)
    for layer in layers():
        x = layer(x)
    return keras.Model(ids, x)


def causal() -> keras.Model:
    ids = keras.Input((None,), dtype="int32")
    x = EncoderLayer(M, 2)(embedding()(ids), use_causal_mask=True)
    return keras.Model(ids, EncoderLayer(M, 2, norm_first=False)(x, attention_mask=masks.window(3, 3)))


def inducing_points() -> keras.Model:
    isab = [LatentAttention(3, M, num_heads=2, norm_first=False, read_out=True) for _ in range(2)]
    return keras.Sequential([embedding(), *isab, EncoderLayer(M, 2)])


STACKS: dict[str, Callable[[], keras.Model]] = {
    "Sequential": sequential,
    "functional": functional,
    "causal": causal,
    "inducing points": inducing_points,
}


@pytest.mark.parametrize("stack", STACKS)
def test_padding_is_as_if_it_were_not_there(stack: str) -> None:
    model = STACKS[stack]()
    out = array(model(tensor(IDS)))
    for i in range(2):
        close(out[i, REAL[i]], array(model(tensor(IDS[i : i + 1, REAL[i]])))[0])
    assert np.abs(out[0, :4] - array(model(tensor(np.where(REAL, IDS, 1))))[0, :4]).max() > 1e-3


@pytest.mark.every_backend
def test_what_is_compiled_and_what_is_saved_honours_it_too(tmp_path: Path) -> None:
    model = functional()
    out = array(model(tensor(IDS)))
    close(model.predict(IDS, verbose=0), out)
    model.save(tmp_path / "model.keras")
    close(keras.models.load_model(tmp_path / "model.keras")(tensor(IDS)), out)


@pytest.mark.every_backend
def test_the_mask_of_what_comes_out() -> None:
    x = embedding()(tensor(IDS))
    memory = embedding()(tensor(IDS[:, :5]))
    for layer in (EncoderLayer(M, 2), FeedForward(M), LatentAttention(3, M, num_heads=2, read_out=True)):
        close(get_keras_mask(layer(x)), REAL)
    out, _ = EncoderLayer(M, 2)(x, return_attention_scores=True)
    close(get_keras_mask(out), REAL)
    close(get_keras_mask(DecoderLayer(M, 2)(x, memory)), REAL)
    assert get_keras_mask(LatentAttention(3, M, num_heads=2)(x)) is None


def test_pooling_by_latents() -> None:
    ids = keras.Input((None,), dtype="int32")
    x = EncoderLayer(M, 2)(embedding()(ids))
    pooled = LatentAttention(3, M, num_heads=2, self_layers=1)(x)
    model = keras.Model(ids, EncoderLayer(M, 2)(pooled))
    out = array(model(tensor(IDS)))
    close(out[:1], model(tensor(IDS[:1, :4])))


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_decoder_honours_both_masks(norm_first: bool) -> None:
    source, target = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    memory = EncoderLayer(M, 2)(embedding()(source))
    y = embedding()(target)
    for _ in range(2):
        y = DecoderLayer(M, 2, norm_first=norm_first)(y, memory)  # not causal: padding of the target is seen, or not
    model = keras.Model([source, target], y)
    short = np.array([[3, 2, 0], [1, 2, 3]], np.int32)
    out = array(model([tensor(IDS), tensor(short)]))
    close(out[:1, :2], model([tensor(IDS[:1, :4]), tensor(short[:1, :2])]))
    close(out[1:], model([tensor(IDS[1:]), tensor(short[1:])]))


@pytest.mark.every_backend
def test_given_masks_and_attached_ones_are_the_same() -> None:
    table, plain = embedding(), keras.layers.Embedding(WORDS, M)
    table.build()
    plain.build()
    plain.set_weights(table.get_weights())
    x, bare, real = table(tensor(IDS)), plain(tensor(IDS)), tensor(REAL)
    for layer in (EncoderLayer(M, 2), LatentAttention(3, M, num_heads=2), MultiHeadAttention(M, 2)):
        close(layer(x), layer(bare, query_mask=real))
        close(layer(query=x), layer(bare, query_mask=real))
    decoder = DecoderLayer(M, 2)
    close(decoder(x, x), decoder(bare, bare, query_mask=real, value_mask=real))


def test_a_mask_of_the_memory_is_not_made_of_its_padding() -> None:
    """`memory_mask` is about pairs; what Keras knows of the memory comes as `value_mask`."""
    decoder, x = DecoderLayer(M, 2), embedding()(tensor(IDS))
    allowed = np.ones((7, 7), bool)
    allowed[:, 0] = False
    _, own, other = decoder(x, x, memory_mask=tensor(allowed), return_attention_scores=True)
    assert (array(own) > 0).any((0, 1, 2))[0]
    close(array(other)[0, :, :, [0, 4, 5, 6]], np.zeros((4, 2, 7)))
    assert (array(other)[0, :, :, 1:4] > 0).all()


def test_an_example_of_nothing_but_padding() -> None:
    model = functional()
    out = array(model(tensor(np.zeros((1, 4), np.int32))))
    assert np.isfinite(out).all()
