"""Every Keras layer of this package made of its PyTorch twin and back: weights, options, and what they compute."""

from __future__ import annotations

import inspect
import json
from typing import Any

import keras
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
from tests.keras.modules import MODULES, SMALL, grouped, made, twin_of
from tests.keras.parity import assert_same, assert_same_state, draw

# Position schemes have tests of their own, as have what draws and what reads ids.
OTHERS = {"Alibi", "Bert", "DropPath", "Learned", "Rope", "ShawRelative", "Sinusoidal", "T5Buckets"}
# Of "separate" keys and values are other inputs.
WITH_OUTPUT = [x for x in MODULES if x.split(",")[0] not in OTHERS and x != "MultiHeadAttention, separate"]


def exported() -> list[type[Layer]]:
    found = [getattr(part, name) for part in (hk, hk.positions) for name in part.__all__]
    layers = [x for x in found if isinstance(x, type) and issubclass(x, Layer) and x is not hk.positions.Positions]
    return [*layers, KerasCrossLayer, KerasMLA]


def test_every_layer_that_has_a_twin_can_be_converted() -> None:
    assert set(exported()) == set(TWINS)
    known = keras.saving.get_custom_objects()
    assert {known.get(f"headwise>{cls.__name__}") for cls in TWINS} == set(TWINS)
    assert set(READERS) == set(TWINS.values())
    assert {cls.__name__ for cls in TWINS} == {name.split(",")[0] for name in MODULES}
    assert all(ours.__name__ == theirs.__name__ for ours, theirs in TWINS.items())


@pytest.mark.parametrize("name", cases(MODULES, "MultiHeadAttention, sinks_gate_softcap"))
def test_twins_there_and_back(name: str) -> None:
    module = made(name)
    layer = twin_of(module).from_torch(module)
    assert layer.built
    back = layer.to_torch()
    assert type(back) is type(module)
    assert_same_state(module, back)
    assert READERS[type(back)](back, repr) == READERS[type(module)](module, repr)


@pytest.mark.parametrize("name", MODULES)
def test_twins_of_keras_there_and_back(name: str) -> None:
    module = made(name)
    cls = twin_of(module)
    first = cls.from_torch(module, name="mine", dtype="mixed_bfloat16", trainable=False)
    config = first.get_config()
    assert {*inspect.signature(cls.__init__).parameters} - {"self", "kwargs"} <= config.keys()
    config |= {option: value for option, value in (("seed", 3), ("kernel", "chunked")) if option in config}
    layer = cls.from_config(json.loads(json.dumps(config)))
    assert json.dumps(layer.get_config()) == json.dumps(config)
    assert (layer.name, layer.dtype_policy.name, layer.trainable) == ("mine", "mixed_bfloat16", False)
    layer.build(None)
    described = [[(w.path.split("/")[-2:], w.shape, w.dtype) for w in each.weights] for each in (layer, first)]
    assert described[0] == described[1]
    for a, b in zip(layer.weights, first.weights, strict=True):
        a.assign(array(b) + 0.5)
    back = cls.from_torch(layer.to_torch(kernel="auto"), name=layer.name)
    for a, b in zip(layer.weights, back.weights, strict=True):
        np.testing.assert_array_equal(array(a), array(b))
    assert_same_state(layer.to_torch(kernel="auto"), back.to_torch())


REAL = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]], bool)
Call = tuple[list[np.ndarray], dict[str, Any], dict[str, Any]]


def call_of(module: Any) -> Call:
    """Inputs, and the other arguments of a call of the module and of the layer."""
    real, padding = {"real": torch.tensor(REAL)}, tensor(REAL)
    mask = masks.causal() & masks.window(3, 0)
    if isinstance(module, hnn.FeedForward):
        return [draw(3, 5, 8)], {}, {}
    if isinstance(module, CrossLayer):
        return [draw(3, 5, 8), draw(3, 5, module.memory_dim, seed=1)], real, {"value_mask": padding}
    if isinstance(module, hnn.LatentAttention):
        x = draw(3, 5, module.input_dim)
        if module.read_out is None:
            return [x], real, {"query_mask": padding}
        return [draw(3, 4, module.output_dim, seed=1), x], real, {"value_mask": padding}
    if isinstance(module, hnn.DecoderLayer):
        memory = draw(3, 5, module.cross_attention.kdim, seed=1)
        theirs = {"mask": mask, "memory_real": torch.tensor(REAL)}
        return [draw(3, 5, 8), memory], theirs, {"attention_mask": mask, "value_mask": padding}
    return [draw(3, 5, module.dim)], {"mask": mask, **real}, {"attention_mask": mask, "query_mask": padding}


EVERYWHERE = [
    *("MultiHeadAttention, sinks_gate_softcap", "FeedForward, gelu_tanh", "LatentAttention, read_out"),
    *("EncoderLayer, rms after", "DecoderLayer", "MultiHeadLatentAttention", "MultiHeadLatentAttention, options"),
]


@pytest.mark.parametrize("name", cases(WITH_OUTPUT, *EVERYWHERE))
def test_the_same_numbers_and_gradients(name: str) -> None:
    module = made(name)
    inputs, theirs, ours = call_of(module)
    assert_same(twin_of(module).from_torch(module), module, *inputs, theirs=theirs, ours=ours)


def test_pytorchs_own_layers() -> None:
    theirs = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=True, activation="gelu").eval()
    layer = hk.EncoderLayer.from_torch(theirs)
    x = draw(2, 5, 8)
    np.testing.assert_allclose(array(layer(tensor(x))), theirs(torch.tensor(x)).detach().numpy(), atol=1e-5)
    theirs = nn.TransformerDecoderLayer(8, 2, 12, batch_first=True).eval()
    layer = hk.DecoderLayer.from_torch(theirs)
    memory = draw(2, 4, 8)
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
    assert_same_state(module, back)


def test_the_kernel_that_is_asked_for_is_that_of_every_attention() -> None:
    module = hnn.DecoderLayer(8, self_attention=grouped(kernel="flex"), cross_attention=grouped(kernel="sdpa"))
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
