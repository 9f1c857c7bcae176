"""Layers of transformers: the same numbers and gradients as in PyTorch, what is dropped, shapes, configs, bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from keras import ops

from headwise import masks, nn
from headwise.errors import ArgumentError, DtypeError, ShapeError
from headwise.keras import DecoderLayer, EncoderLayer, MultiHeadAttention, positions
from tests.keras.backend import array, gradients, tensor
from tests.keras.parity import assert_same, close, draw, twins

S, M, H = 7, 8, 2
REAL = np.array([[True] * 7, [True] * 4 + [False] * 3])


# The same as in PyTorch.


@pytest.mark.parametrize("norm_first", [True, False])
def test_masks_and_padding(norm_first: bool) -> None:
    ours, theirs = (layer(M, H, norm_first=norm_first) for layer in (EncoderLayer, nn.EncoderLayer))
    allowed = np.random.default_rng(0).random((S, S)) > 0.4
    allowed[2] = False  # which may attend to nothing
    given = {"attention_mask": tensor(allowed), "query_mask": tensor(REAL)}
    assert_same(
        *(ours, theirs, draw(2, S, M)),
        ours=given,
        theirs={"mask": torch.tensor(allowed), "real": torch.tensor(REAL)},
    )
    weights = array(ours(tensor(draw(2, S, M)), **given, return_attention_scores=True)[1])
    assert (weights[:, :, 2] == 0).all()
    assert ((weights > 0) <= (allowed & REAL[:, None, None])).all()


def test_a_ready_attention() -> None:
    options: dict[str, Any] = {"num_kv_heads": 1, "qk_norm": "rms", "softcap": 5.0}
    ours = MultiHeadAttention(M, H, positions=positions.Rope(4), **options)
    theirs = nn.MultiHeadAttention(M, H, positions=nn.positions.Rope(4), **options)
    ids = np.array([3, 1, 4, 15, 9, 2, 6], np.int32)
    ours_given = {"attention_mask": masks.window(3, 0), "position_ids": tensor(ids)}
    assert_same(
        *(EncoderLayer(M, attention=ours), nn.EncoderLayer(M, attention=theirs), draw(2, S, M)),
        ours=ours_given,
        theirs={"mask": masks.window(3, 0), "position_ids": torch.tensor(ids)},
    )


def test_masks_of_a_decoder_layer() -> None:
    real, allowed = REAL[:, :5], np.random.default_rng(1).random((S, 5)) > 0.3
    assert_same(
        DecoderLayer(M, H, memory_dim=6),
        nn.DecoderLayer(M, H, memory_dim=6),
        *(draw(2, S, M), draw(2, 5, 6)),
        ours={"use_causal_mask": True, "memory_mask": tensor(allowed), "value_mask": tensor(real)},
        theirs={
            "mask": masks.causal(),
            "memory_mask": torch.tensor(allowed),
            "memory_real": torch.tensor(real),
        },
    )


@pytest.mark.parametrize("both", [True, False])
def test_positions_of_a_decoder_layer(both: bool) -> None:
    rope = {"positions": positions.Rope(4)}
    ours = DecoderLayer(
        M,
        self_attention=MultiHeadAttention(M, H, **(rope if both else {})),
        cross_attention=MultiHeadAttention(M, H, positions=positions.Rope(4)),
    )
    theirs = nn.DecoderLayer(
        M,
        self_attention=nn.MultiHeadAttention(M, H, positions=nn.positions.Rope(4) if both else None),
        cross_attention=nn.MultiHeadAttention(M, H, positions=nn.positions.Rope(4)),
    )
    twins(ours, theirs)
    x, memory, left = draw(2, S, M), draw(2, 5, M), REAL[:, ::-1].copy()
    given = {"query_mask": tensor(left)}
    expected = theirs(torch.tensor(x), torch.tensor(memory), real=torch.tensor(left))
    close(array(ours(tensor(x), tensor(memory), **given))[left], expected.detach().numpy()[left])
    ids = np.arange(S, dtype=np.int32) * 3
    expected = theirs(torch.tensor(x), torch.tensor(memory), position_ids=torch.tensor(ids))
    close(ours(tensor(x), tensor(memory), position_ids=tensor(ids)), expected)


# What else a layer promises.


def test_weights_of_a_decoder_layer() -> None:
    layer = DecoderLayer(M, H)
    out, own, other = layer(
        tensor(draw(2, S, M)), tensor(draw(2, 5, M)), use_causal_mask=True, return_attention_scores=True
    )
    assert [tuple(x.shape) for x in (out, own, other)] == [(2, S, M), (2, H, S, S), (2, H, S, 5)]
    assert (np.triu(array(own), 1) == 0).all()
    close(array(other).sum(-1), np.ones((2, H, S)))


@pytest.mark.every_backend
def test_gradients_are_finite_where_nothing_may_be_attended_to() -> None:
    layer = EncoderLayer(M, H, norm_first=False)
    layer.build()
    real = tensor(np.zeros((1, 3), bool))
    (found,) = gradients(lambda x: ops.sum(layer(x, query_mask=real) ** 2), tensor(draw(1, 3, M)))
    assert np.isfinite(found).all()


def test_seeds_of_the_parts_differ() -> None:
    layer = EncoderLayer(M, H, dropout=0.5, drop_path=0.5, seed=1)
    parts: Any = (layer.attention.seed_generator, layer.mlp.dropout, layer.dropout, layer.drop_path.seed_generator)
    drawn = [getattr(part, "seed_generator", part).get_config()["seed"] for part in parts]
    assert len(set(drawn)) == 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EncoderLayer(M), "num_heads: expected the number of heads, or a layer as attention"),
        (lambda: EncoderLayer(M, H, attention=MultiHeadAttention(M, H)), "num_heads: expected None"),
        (lambda: EncoderLayer(M, attention_dropout=0.1, attention=MultiHeadAttention(M, H)), "attention_dropout"),
        (lambda: EncoderLayer(M, attention=MultiHeadAttention(6, H)), "attention: expected a layer with dim=8"),
        (lambda: EncoderLayer(M, attention=nn.MultiHeadAttention(M, H)), "attention: expected an attention layer of"),
        (lambda: EncoderLayer(M, H, seed=-1), "seed"),
        (lambda: DecoderLayer(M), "num_heads: expected the number of heads, or a layer as self_attention"),
        (
            lambda: DecoderLayer(M, H, memory_dim=6, cross_attention=MultiHeadAttention(M, H)),
            "memory_dim: expected None",
        ),
    ],
)
def test_bad_options(make: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


def test_bad_input() -> None:
    encoder, decoder, x = EncoderLayer(M, H), DecoderLayer(M, H, memory_dim=6), tensor(draw(2, S, M))
    with pytest.raises(ShapeError, match="value: expected the batch size of query"):
        decoder(x, tensor(draw(3, S, 6)))
    with pytest.raises(ArgumentError, match="value: expected the memory"):
        decoder(x, None)
    with pytest.raises(ArgumentError, match="position_ids: expected a layer with positions"):
        encoder(x, position_ids=tensor(np.arange(S)))
    with pytest.raises(DtypeError, match="attention_mask"):
        encoder(x, attention_mask=tensor(np.ones((S, S), np.float32)))
    with pytest.raises(ShapeError, match="attention_mask"):
        encoder(x, attention_mask=tensor(np.ones((S, 3), bool)))
