"""Learned latents that read an input: numbers by hand, the same as in PyTorch, masks, names, shapes, bad input."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from headwise import masks, nn
from headwise.errors import ArgumentError, ShapeError
from headwise.keras import LatentAttention
from tests.keras.backend import array, tensor
from tests.keras.parity import assert_same, close, draw, twins

S = 7
REAL = np.array([[True] * 7, [True, True, False, True, True, False, False]])
KINDS: dict[str, dict[str, Any]] = {
    "one read": {},
    "shared": {"num_reads": 3, "share_reads": True, "self_layers": 1, "self_heads": 4},
    "inducing points": {"norm_first": False, "read_out": True, "activation": "relu"},
    "Perceiver IO": {"num_reads": 2, "self_layers": 1, "read_out": True, "query_residual": False, "head_dim": 3},
}


def make(**options: Any) -> LatentAttention:
    """Three latents of width 8 over an input of width 6."""
    return LatentAttention(3, 8, 6, 2, **options)


def test_a_latent_reads_what_is_like_it() -> None:
    layer = LatentAttention(2, 2, num_heads=1, norm_first=False)
    layer.build()
    layer.latents.assign([[math.sqrt(2) * math.log(3), 0.0], [0.0, 0.0]])
    layer.reads[0].attention.qkv.kernel.assign(np.tile(np.eye(2), 3))
    _, weights = layer(tensor(np.eye(2)[None]), return_attention_scores=True)
    # Scores q · k / √2: the first latent has ln 3 for the first position and 0 for the second.
    close(array(weights["reads.0.attention"])[0, 0], [[0.75, 0.25], [0.5, 0.5]])


def test_inducing_points_of_one_sequence() -> None:
    options = KINDS["inducing points"]
    ours, theirs = make(**options), nn.LatentAttention(3, 8, 6, 2, **options)
    twins(ours, theirs)
    x = draw(2, S, 6)
    expected = theirs(torch.tensor(x), real=torch.tensor(REAL))
    close(ours(tensor(x), query_mask=tensor(REAL)), expected)
    close(ours(tensor(x), value_mask=tensor(REAL)), expected)
    close(array(ours(tensor(x[1:, REAL[1]])))[0], array(ours(tensor(x), query_mask=tensor(REAL)))[1, REAL[1]])


def test_a_mask_says_which_latent_reads_what() -> None:
    ours, theirs = make(num_reads=2), nn.LatentAttention(3, 8, 6, 2, num_reads=2)
    allowed = np.zeros((3, S), bool)
    allowed[0, :3] = allowed[1, 3:] = True  # the third latent may read nothing
    given = {"attention_mask": tensor(allowed)}
    assert_same(ours, theirs, draw(2, S, 6), ours=given, theirs={"mask": torch.tensor(allowed)})
    x = tensor(draw(2, S, 6))
    close(ours(x, attention_mask=masks.from_tensor(torch.tensor(allowed))), ours(x, **given))


@pytest.mark.parametrize("kind", KINDS)
def test_weights_have_the_names_of_records(kind: str) -> None:
    ours, theirs = make(**KINDS[kind]), nn.LatentAttention(3, 8, 6, 2, **KINDS[kind])
    twins(ours, theirs)
    x = draw(2, S, 6)
    out, weights = ours(tensor(x), return_attention_scores=True)
    expected, seen = theirs(torch.tensor(x), record=True)
    close(out, expected)
    assert list(weights) == seen.layers
    for name, found in weights.items():
        close(found, seen[name].weights())


def test_latents_have_names() -> None:
    layer = make(latent_names=["a", "b", "c"], self_layers=1, read_out=True)
    read, out = layer.reads[0], layer.read_out
    names = [(x.row_names, x.col_names) for x in (read.attention, read.layers[0].attention, out.attention)]
    own = ("a", "b", "c")
    assert names == [(own, None), (own, own), (None, own)]
    assert make().latent_names == ("latent 0", "latent 1", "latent 2")


def test_shared_reads_are_one_layer_after_the_first() -> None:
    assert len(make(num_reads=4, share_reads=True).reads) == 2
    assert len(make(num_reads=4).reads) == 4
    assert len(make(share_reads=True).reads) == 1


def test_where_latents_begin() -> None:
    first, last = (LatentAttention(64, 64, num_heads=2, norm_first=norm_first) for norm_first in (True, False))
    for layer, deviation in ((first, 0.02), (last, math.sqrt(6 / 128) / math.sqrt(3))):
        layer.build()
        assert math.isclose(array(layer.latents).std(), deviation, rel_tol=0.1)


def test_seeds_of_the_parts_differ() -> None:
    layer = make(dropout=0.5, num_reads=2, self_layers=2, read_out=True, seed=1)
    generators = [part for part in layer._flatten_layers() if getattr(part, "seed_generator", None) is not None]
    assert len(generators) == 7 * 3  # seven layers: of attention weights, within the network, of what is added
    assert len({part.seed_generator.get_config()["seed"] for part in generators}) == len(generators)


def test_bad_options_are_those_of_the_twin() -> None:
    with pytest.raises(ArgumentError, match="output_dim: expected read_out=True"):
        LatentAttention(3, 8, 6, 2, output_dim=5)


def test_bad_input() -> None:
    pool, out, x = make(), make(read_out=True, output_dim=4), tensor(draw(2, S, 6))
    with pytest.raises(ArgumentError, match="value: expected None without read_out"):
        pool(x, tensor(draw(2, S, 6, seed=1)))
    with pytest.raises(ArgumentError, match=r"value: expected the input \[B, S, 6\]"):
        out(tensor(draw(2, 3, 4)))
    with pytest.raises(ShapeError, match="value: expected the batch size of query"):
        out(tensor(draw(3, 2, 4)), x)
    with pytest.raises(ShapeError, match="attention_mask"):
        pool(x, attention_mask=tensor(np.ones((2, S), bool)))
