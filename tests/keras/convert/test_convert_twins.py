"""Every Keras layer of this package made of its PyTorch twin and back: weights, options, and what they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from headwise import keras as hk
from headwise import masks, models
from headwise import nn as hnn
from headwise.errors import ArgumentError, CheckpointError
from headwise.keras.convert.options import READERS
from headwise.keras.convert.twins import TWINS
from headwise.keras.cross import CrossLayer as KerasCrossLayer
from headwise.keras.layer import Layer
from headwise.keras.multi_head_latent import MultiHeadLatentAttention as KerasMLA
from headwise.nn import positions
from headwise.nn.cross import CrossLayer
from tests.keras.backend import array, cases, tensor

SMALL = models.BertConfig(vocab_size=30, dim=8, num_layers=2, num_heads=2, ffn_dim=12, max_positions=10, dropout=0.2)
MLA: dict[str, Any] = {"kv_rank": 6, "nope_dim": 4, "rope_dim": 2, "value_head_dim": 5}


def _grouped(**options: Any) -> hnn.MultiHeadAttention:
    return hnn.MultiHeadAttention(8, 4, num_kv_heads=2, **options)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "Alibi": lambda: positions.Alibi(6, 4.0),
    "Learned": lambda: positions.Learned(10, 8, std=0.5),
    "Rope": lambda: positions.Rope(8, base=50.0, interleaved=True, rotary_dim=6),
    "Rope, DynamicNTK": lambda: positions.Rope(8, scaling=positions.DynamicNTK(2.0, 4)),
    "ShawRelative": lambda: positions.ShawRelative(4, 3),
    "ShawRelative, values": lambda: positions.ShawRelative(4, (3, 0), values=True, value_dim=5),
    "Sinusoidal": lambda: positions.Sinusoidal(8, base=50.0, interleaved=False),
    "T5Buckets": lambda: positions.T5Buckets(4, 8, 20, bidirectional=False, std=0.3),
    "DropPath": lambda: hnn.DropPath(0.3),
    "FeedForward": lambda: hnn.FeedForward(8, 12, activation="relu", dropout=0.1),
    "FeedForward, gated": lambda: hnn.FeedForward(8, activation="swiglu", bias=False),
    "MultiHeadAttention": lambda: hnn.MultiHeadAttention(8, 2),
    "MultiHeadAttention, Alibi": lambda: _grouped(positions=positions.Alibi(4)),
    "MultiHeadAttention, T5Buckets": lambda: _grouped(positions=positions.T5Buckets(4, 8, 20), scale=1.0),
    "MultiHeadAttention, ShawRelative": lambda: _grouped(positions=positions.ShawRelative(2, 3, values=True)),
    "MultiHeadLatentAttention": lambda: hnn.MultiHeadLatentAttention(8, 2, q_rank=7, **MLA),
    "MultiHeadLatentAttention, options": lambda: hnn.MultiHeadLatentAttention(
        *(8, 2),
        q_rank=None,
        bias=True,
        norm_eps=1e-2,
        dropout=0.3,
        path="absorb",
        positions=positions.Rope(2, scaling=positions.Yarn(4.0, 16, mscale_all_dim=1.0)),
        **MLA,
    ),
    "CrossLayer": lambda: CrossLayer(8, 2, memory_dim=6, query_residual=False, dropout=0.1, scale=0.3),
    "CrossLayer, post-norm": lambda: CrossLayer(8, 2, norm_first=False, head_dim=3, value_head_dim=5, ffn_dim=10),
    "LatentAttention": lambda: hnn.LatentAttention(3, 8, 6, 2, num_reads=3, share_reads=True, self_layers=2),
    "LatentAttention, read_out": lambda: hnn.LatentAttention(
        *(3, 8, 6, 2),
        num_reads=2,
        self_layers=1,
        self_heads=4,
        read_out=True,
        output_dim=10,
        query_residual=False,
        latent_names=["a", "b", "c"],
        activation="geglu",
        norm_eps=1e-3,
        bias=False,
        scale=0.2,
    ),
    "LatentAttention, widths": lambda: hnn.LatentAttention(
        *(2, 8, None, 2),
        read_out=True,
        head_dim=3,
        value_head_dim=5,
        ffn_dim=20,
        norm_first=False,
        dropout=0.1,
    ),
    "EncoderLayer": lambda: hnn.EncoderLayer(8, 2, activation="geglu_tanh", norm="rms", bias=False, drop_path=0.2),
    "EncoderLayer, attention": lambda: hnn.EncoderLayer(
        *(8,),
        attention=_grouped(qk_norm="layer", positions=positions.Rope(2)),
        norm_first=False,
        dropout=0.1,
        ffn_dropout=0.3,
        norm_eps=1e-2,
    ),
    "EncoderLayer, latent": lambda: hnn.EncoderLayer(
        8, attention=hnn.MultiHeadLatentAttention(8, 2, q_rank=None, **MLA)
    ),
    "DecoderLayer": lambda: hnn.DecoderLayer(8, 2, memory_dim=6, dropout=0.2, attention_dropout=0.1),
    "DecoderLayer, attention": lambda: hnn.DecoderLayer(
        8, 2, self_attention=_grouped(positions=positions.Alibi(4)), ffn_dim=10, norm_first=False, activation="silu"
    ),
    "Bert": lambda: models.Bert(SMALL),
}
WITH_OUTPUT = [name for name in MODULES if name.split(",")[0] not in ("Alibi", "Rope", "ShawRelative", "T5Buckets")]


def made(name: str) -> Any:
    """A module of which every parameter differs from where it began, in eval mode."""
    module = MODULES[name]().eval()
    drawn = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=drawn)
    return module


def twin_of(module: nn.Module) -> Any:
    return next(layer for layer, twin in TWINS.items() if twin is type(module))


def exported() -> list[type[Layer]]:
    found = [getattr(part, name) for part in (hk, hk.positions) for name in part.__all__]
    layers = [x for x in found if isinstance(x, type) and issubclass(x, Layer) and x is not hk.positions.Positions]
    return [*layers, KerasCrossLayer, KerasMLA]


def test_every_layer_that_has_a_twin_can_be_converted() -> None:
    assert set(exported()) == set(TWINS)
    assert set(READERS) == set(TWINS.values())
    assert {cls.__name__ for cls in TWINS} == {name.split(",")[0] for name in MODULES}
    assert all(ours.__name__ == theirs.__name__ for ours, theirs in TWINS.items())


def assert_same(a: nn.Module, b: nn.Module) -> None:
    assert repr(a) == repr(b)
    assert list(a.state_dict()) == list(b.state_dict())
    for name, value in a.state_dict().items():
        torch.testing.assert_close(b.state_dict()[name], value, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("name", MODULES)
def test_twins_there_and_back(name: str) -> None:
    module = made(name)
    layer = twin_of(module).from_torch(module)
    assert layer.built
    back = layer.to_torch()
    assert type(back) is type(module)
    assert_same(module, back)
    assert READERS[type(back)](back, repr) == READERS[type(module)](module, repr)


@pytest.mark.parametrize("name", MODULES)
def test_twins_of_keras_there_and_back(name: str) -> None:
    first = twin_of(made(name)).from_torch(made(name))
    layer = type(first).from_config(first.get_config())  # as one that was loaded
    layer.build(None)
    for a, b in zip(layer.weights, first.weights, strict=True):
        a.assign(array(b) + 0.5)
    back = type(layer).from_torch(layer.to_torch(), name=layer.name)
    assert [w.shape for w in back.weights] == [w.shape for w in layer.weights]
    for a, b in zip(layer.weights, back.weights, strict=True):
        np.testing.assert_array_equal(array(a), array(b))
    assert_same(layer.to_torch(), back.to_torch())


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


REAL = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)
IDS = np.array([[3, 4, 9, 1, 0], [5, 2, 2, 0, 0]])


def outputs(name: str, module: Any, layer: Any) -> tuple[Any, Any]:
    """What both make of the same."""
    kind = name.split(",")[0]
    x, real = numbers(2, 5, 8), {"real": torch.tensor(REAL)}
    causal = masks.causal()
    if kind in ("Sinusoidal", "Learned"):
        return module(torch.tensor(IDS)), layer(tensor(IDS.astype(np.int32)))
    if kind == "Bert":
        return (
            module(torch.tensor(IDS), real=torch.tensor(REAL))[torch.tensor(REAL)],
            array(layer(tensor(IDS.astype(np.int32)), real=tensor(REAL)))[REAL],
        )
    if kind in ("FeedForward", "DropPath"):
        return module(torch.tensor(x)), layer(tensor(x))
    if kind == "CrossLayer":
        memory = numbers(2, 5, module.memory_dim)
        return module(torch.tensor(x), torch.tensor(memory), **real), layer(
            tensor(x), tensor(memory), value_mask=tensor(REAL)
        )
    if kind == "LatentAttention":
        x = numbers(2, 5, module.input_dim)
        if module.read_out is None:
            return module(torch.tensor(x), **real), layer(tensor(x), query_mask=tensor(REAL))
        query = numbers(2, 4, module.output_dim)
        return module(torch.tensor(query), torch.tensor(x), **real), layer(
            tensor(query), tensor(x), value_mask=tensor(REAL)
        )
    if kind == "DecoderLayer":
        memory = numbers(2, 5, module.cross_attention.kdim)
        return (
            module(torch.tensor(x), torch.tensor(memory), mask=causal, memory_real=torch.tensor(REAL)),
            layer(tensor(x), tensor(memory), attention_mask=causal, value_mask=tensor(REAL)),
        )
    return (
        module(torch.tensor(x), mask=causal, **real),
        layer(tensor(x), attention_mask=causal, query_mask=tensor(REAL)),
    )


@pytest.mark.parametrize("name", cases(WITH_OUTPUT, "Bert"))
def test_twins_compute_the_same(name: str) -> None:
    module = made(name)
    layer = twin_of(module).from_torch(module)
    expected, found = outputs(name, module, layer)
    np.testing.assert_allclose(array(found), expected.detach().numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.every_backend
def test_pytorchs_own_layers() -> None:
    theirs = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=True, activation="gelu").eval()
    layer = hk.EncoderLayer.from_torch(theirs)
    x = numbers(2, 5, 8)
    np.testing.assert_allclose(array(layer(tensor(x))), theirs(torch.tensor(x)).detach().numpy(), atol=1e-5)
    theirs = nn.TransformerDecoderLayer(8, 2, 12, batch_first=True).eval()
    layer = hk.DecoderLayer.from_torch(theirs)
    memory = numbers(2, 4, 8)
    expected = theirs(torch.tensor(x), torch.tensor(memory)).detach().numpy()
    np.testing.assert_allclose(array(layer(tensor(x), tensor(memory))), expected, atol=1e-5)


def test_one_table_of_two_attentions_stays_one() -> None:
    table = positions.T5Buckets(4, 8, 20)
    heads = [hnn.MultiHeadAttention(8, 4, positions=table) for _ in range(2)]
    module = hnn.DecoderLayer(8, self_attention=heads[0], cross_attention=heads[1]).eval()
    layer = hk.DecoderLayer.from_torch(module)
    assert layer.self_attention.positions is layer.cross_attention.positions
    assert len(layer.weights) == len(list(module.parameters()))
    back = layer.to_torch()
    assert back.self_attention.positions is back.cross_attention.positions
    assert_same(module, back)


def test_the_kernel_that_is_asked_for_is_that_of_every_attention() -> None:
    module = hnn.DecoderLayer(8, self_attention=_grouped(kernel="flex"), cross_attention=_grouped(kernel="sdpa"))
    with pytest.raises(ArgumentError, match="Received: kernel='flex'"):
        hk.DecoderLayer.from_torch(module)
    layer = hk.DecoderLayer.from_torch(module, kernel="plain")
    assert layer.self_attention.kernel == layer.cross_attention.kernel == "plain"
    assert layer.to_torch(kernel="sdpa").cross_attention.kernel == "sdpa"


def test_an_attention_of_somebody_elses_is_refused() -> None:
    class Mine(nn.Module):
        dim = 8

    with pytest.raises(ArgumentError, match=r"Mine has no twin in headwise.keras"):
        hk.EncoderLayer.from_torch(hnn.EncoderLayer(8, attention=Mine()))


def test_replaced_parts_of_a_layer_are_refused() -> None:
    module = hnn.EncoderLayer(8, 2)
    module.mlp_norm = nn.LayerNorm(8, eps=0.25)
    with pytest.raises(CheckpointError, match=r"Expected '.*eps=1e-05.*Received: '.*eps=0.25"):
        hk.EncoderLayer.from_torch(module)
    module = models.Bert(SMALL)
    module.layers = module.layers[:1]
    with pytest.raises(CheckpointError, match=r"layers_1.*there is no place for it in Bert of PyTorch"):
        hk.Bert.from_torch(module)
    module = models.Bert(SMALL)
    module.layers.append(hnn.EncoderLayer(8, 2))
    with pytest.raises(CheckpointError, match=r"layers.2: there is no such part"):
        hk.Bert.from_torch(module)
    module = hnn.EncoderLayer(8, 2)
    module.mlp_norm = nn.Identity()
    with pytest.raises(CheckpointError, match=r"mlp_norm.*there is no place for it in EncoderLayer of PyTorch"):
        hk.EncoderLayer.from_torch(module)


def test_a_part_that_does_not_train_stays_so() -> None:
    layer = hk.EncoderLayer.from_torch(hnn.EncoderLayer(8, 2))
    layer.mlp.trainable = False
    back = layer.to_torch()
    assert {name.split(".")[0] for name, p in back.named_parameters() if not p.requires_grad} == {"mlp"}
    again = hk.EncoderLayer.from_torch(back)
    assert len(again.trainable_weights) == len(layer.trainable_weights) == len(layer.weights) - 4


@pytest.mark.parametrize("name", ["EncoderLayer, attention", "MultiHeadAttention, T5Buckets", "Bert"])
def test_twins_of_half_precision_stay_so(name: str) -> None:
    module = made(name).bfloat16()
    layer = twin_of(module).from_torch(module)
    assert {w.dtype for w in layer.weights} == {"bfloat16"}
    assert_same(module, layer.to_torch())
