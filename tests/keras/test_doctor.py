"""The doctor on a Keras layer of this package, and the torch module that a layer becomes, on every backend."""

from __future__ import annotations

import copy
from typing import Any

import keras
import numpy as np
import pytest
import torch
from keras import layers
from torch import nn

import headwise
from headwise import masks
from headwise.errors import ArgumentError, DtypeError
from headwise.keras import MultiHeadAttention
from headwise.keras.as_torch import as_torch, store
from headwise.keras.unbuilt import unbuilt
from headwise.masks import Mask
from headwise.testing import assert_healthy
from tests.held import check_held
from tests.keras.backend import BACKEND, array, tensor
from tests.keras.layers.operations import MultiHeadSelfAttention

OUTSIDE = pytest.mark.skipif(BACKEND == "torch", reason="there a layer is a torch module itself")
WIDTH, HEADS = 16, 4


def built(layer: keras.layers.Layer) -> keras.layers.Layer:
    layer(tensor(np.zeros((1, 3, WIDTH), np.float32)))
    return layer


@pytest.mark.slow
def test_a_correct_layer_is_healthy() -> None:  # those of Keras: test_doctor_layers.py
    layer = built(MultiHeadAttention(WIDTH, HEADS))
    before = [array(w) for w in layer.weights]
    diagnosis = assert_healthy(layer, risks=True, timeout=None)
    assert diagnosis.subject == "MultiHeadAttention"
    assert diagnosis.where is not None
    assert all(np.array_equal(w, array(now)) for w, now in zip(before, layer.weights, strict=True))


# The torch module that a layer becomes.


@pytest.mark.every_backend
@OUTSIDE
def test_outputs_and_gradients_are_the_layers() -> None:
    layer = built(MultiHeadAttention(WIDTH, HEADS, sinks=True))
    module = as_torch(layer)
    assert module.runs_on == BACKEND
    assert dict(module.named_parameters()).keys() == {"qkv.kernel", "qkv.bias", "out.kernel", "out.bias", "sinks"}
    twin = headwise.nn.MultiHeadAttention(WIDTH, HEADS, sinks=True)
    with torch.no_grad():
        for name, value in twin.named_parameters():
            mine = dict(module.named_parameters())[name.replace("weight", "kernel")]
            value.copy_(mine.T if mine.ndim == 2 else mine)
    x = torch.randn(2, 5, WIDTH, requires_grad=True)
    x_twin = x.detach().clone().requires_grad_()
    weight = torch.randn(2, 5, WIDTH)
    y, y_twin = module(x), twin(x_twin)
    (y * weight).sum().backward()
    (y_twin * weight).sum().backward()
    torch.testing.assert_close(y, y_twin, rtol=0, atol=1e-5)
    torch.testing.assert_close(x.grad, x_twin.grad, rtol=0, atol=1e-4)
    torch.testing.assert_close(module.qkv.kernel.grad, twin.qkv.weight.grad.T, rtol=0, atol=1e-4)
    torch.testing.assert_close(module.sinks.grad, twin.sinks.grad, rtol=0, atol=1e-4)
    np.testing.assert_allclose(y.detach().numpy(), array(layer(tensor(x.detach()))), rtol=0, atol=1e-5)


class Noisy(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        return keras.random.dropout(x, 0.5)


@pytest.mark.every_backend
@pytest.mark.skipif(BACKEND != "tensorflow", reason="on JAX, Keras wants a seed in compiled code")
def test_random_functions_without_a_seed_draw_anew() -> None:
    module, x = as_torch(built(Noisy())), torch.ones(1, 3, WIDTH)
    assert not torch.equal(module(x), module(x))


@pytest.mark.every_backend
@OUTSIDE
def test_several_outputs_masks_and_no_gradient() -> None:
    module = as_torch(built(MultiHeadAttention(WIDTH, HEADS)))
    x, allowed = torch.randn(2, 5, WIDTH), torch.ones(5, 5, dtype=torch.bool).tril()
    out, weights = module(x, attention_mask=allowed, return_attention_scores=True)
    again = module(x, attention_mask=headwise.masks.causal())
    assert weights.shape == (2, HEADS, 5, 5)
    assert weights.triu(1).eq(0).all()
    torch.testing.assert_close(out, again, rtol=0, atol=1e-6)
    weights.square().sum().backward()
    assert module.qkv.kernel.grad.abs().sum() > 0
    assert module.out.kernel.grad is None or not module.out.kernel.grad.any()
    with torch.no_grad():
        assert not module(x).requires_grad


@pytest.mark.every_backend
@OUTSIDE
@pytest.mark.parametrize("kind", ["ids", "matrix", "array", "tensor"])
def test_a_mask_that_changes_between_calls_or_before_backward(kind: str) -> None:
    module = as_torch(built(MultiHeadAttention(WIDTH, HEADS)))
    x = torch.randn(2, 5, WIDTH, requires_grad=True)
    held: Any = torch.arange(5) // 2 if kind == "ids" else torch.ones(5, 5, dtype=torch.bool).tril()
    held = held.numpy() if kind == "array" else held
    mask: Mask | Any = {"ids": masks.documents, "matrix": masks.from_tensor}.get(kind, lambda x: x)(held)
    before = module(x, attention_mask=mask)
    (expected,) = torch.autograd.grad(before.square().sum(), x)
    out = module(x, attention_mask=mask)
    if kind != "array":
        assert check_held(out, [x, held, *module.parameters()]) == {"Call"}
    held[:] = True  # every token sees all; of ids: one document
    (found,) = torch.autograd.grad(out.square().sum(), x)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(module(x, attention_mask=mask), module(x), rtol=0, atol=1e-5)


@pytest.mark.every_backend
@OUTSIDE
def test_copies_are_independent_and_the_layer_stays_as_it_is() -> None:
    layer = built(MultiHeadAttention(WIDTH, HEADS))
    module, x = as_torch(layer), torch.randn(1, 3, WIDTH)
    other = copy.deepcopy(module)
    with torch.no_grad():
        other.out.kernel.mul_(2)
    assert not torch.allclose(module(x), other(x))
    np.testing.assert_allclose(module(x).detach().numpy(), array(layer(tensor(x))), rtol=0, atol=1e-6)
    store(other)
    np.testing.assert_allclose(other(x).detach().numpy(), array(layer(tensor(x))), rtol=0, atol=1e-6)
    assert module.num_heads == HEADS
    assert type(module).__name__ == "MultiHeadAttention"


@pytest.mark.every_backend
@OUTSIDE
def test_train_and_eval() -> None:
    model = keras.Sequential([layers.Dense(64), layers.BatchNormalization(), layers.Dropout(0.5)])
    model(tensor(np.zeros((2, 3, 8), np.float32)))
    module, x = as_torch(model), torch.randn(2, 3, 8)
    assert torch.equal(module(x), module(x))
    means = {name: value.clone() for name, value in module.named_buffers()}
    module.train()
    torch.manual_seed(0)
    first = module(x)
    torch.manual_seed(0)
    assert module(x).eq(0).equal(first.eq(0))
    assert first.eq(0).float().mean() > 0.2
    assert any(not torch.equal(value, means[name]) for name, value in module.named_buffers())
    assert all(np.array_equal(array(v), np.zeros(64)) for v in model.non_trainable_variables if "mean" in v.path)


@pytest.mark.every_backend
def test_what_is_no_built_layer_is_said() -> None:
    with pytest.raises(DtypeError, match="expected a Keras layer"):
        as_torch(3)
    with pytest.raises(DtypeError, match=r"module must be an nn\.Module"):
        headwise.diagnose(object())
    layer = layers.MultiHeadAttention(2, 8)
    if BACKEND == "torch":
        assert as_torch(layer) is layer
        return
    with pytest.raises(ArgumentError, match="expected a built layer"):
        as_torch(layer)
    assert isinstance(as_torch(MultiHeadAttention(WIDTH, HEADS)), nn.Module)  # its weights need no shapes


@pytest.mark.every_backend
@OUTSIDE
def test_a_part_is_the_layer_within() -> None:
    layer = built(MultiHeadSelfAttention(WIDTH, HEADS))
    module, x = as_torch(layer), torch.randn(2, 3, WIDTH)
    y = module.query_dense(x)
    np.testing.assert_allclose(y.detach().numpy(), array(layer.query_dense(tensor(x))), rtol=0, atol=1e-6)
    y.sum().backward()
    assert module.query_dense.kernel.grad.abs().sum() > 0
    assert module.key_dense.kernel.grad is None


@pytest.mark.every_backend
@OUTSIDE
@pytest.mark.filterwarnings("ignore:`build:UserWarning")  # Keras says that a part has no weights
def test_a_projection_that_no_call_uses_has_a_parameter_that_changes_nothing() -> None:
    class Lacking(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.value, self.odd = layers.Dense(WIDTH), layers.Dense(WIDTH), layers.Dense(3)

        def call(self, x: Any) -> Any:
            return self.query(x)

    layer = built(Lacking())
    module = as_torch(layer)
    assert module.value.kernel.shape == (WIDTH, WIDTH)
    assert not hasattr(module, "odd")  # of whose size nothing is known
    module(torch.randn(1, 2, WIDTH)).sum().backward()
    assert module.value.kernel.grad is None
    assert [w.path.rpartition("/")[0].rpartition("/")[2] for w in layer.weights] == [layer.query.name] * 2


@pytest.mark.every_backend
@OUTSIDE
def test_what_is_random_in_eval_mode_follows_torchs_generator() -> None:
    class Always(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.dropout = layers.Dropout(0.5)

        def call(self, x: Any) -> Any:
            if BACKEND == "tensorflow":
                import tensorflow as tf

                return tf.nn.dropout(x, 0.5)
            return self.dropout(x, training=True)

    module, x = as_torch(built(Always())), torch.ones(4, 8, 8)
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        found.append(module(x))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.every_backend
@OUTSIDE
def test_a_layer_without_weights_is_built_by_its_calls() -> None:
    made: list[MultiHeadSelfAttention] = []

    def make() -> MultiHeadSelfAttention:
        made.append(MultiHeadSelfAttention(WIDTH, HEADS))
        return made[-1]

    first = make()
    module = unbuilt(first, make)
    assert module.num_heads == HEADS
    with pytest.raises(Exception, match="reshape"):  # each backend has its own
        module(torch.randn(2, 3, 5, 5))
    y = module(torch.randn(2, 3, 8))
    assert module.layer is made[-1]
    assert not first.built
    assert array(module.layer.query_dense.kernel).shape == (8, WIDTH)
    assert y.shape == (2, 3, WIDTH)
    assert unbuilt(module.layer, make) is None
    copied = unbuilt(layers.MultiHeadAttention(2, 8), None)  # from its config
    assert copied(*[torch.randn(1, 3, 8)] * 2).shape == (1, 3, 8)
