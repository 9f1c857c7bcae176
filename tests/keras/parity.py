"""Tests of a layer against its twin in PyTorch: the same output, and the same gradients of inputs and weights."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import torch
from keras import ops
from torch import nn

from headwise.keras.convert.weights import Place, match
from tests.keras.backend import array, compiled, gradients, tensor


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def close(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    expected = expected.detach().numpy() if isinstance(expected, torch.Tensor) else array(expected)
    np.testing.assert_allclose(array(found), expected, atol=tolerance, rtol=tolerance)


def shaken(module: nn.Module) -> nn.Module:
    """The module with random parameters: norms and biases that are 1 and 0 would hide what is not copied."""
    drawn = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=drawn) + (parameter == 1))
    return module.eval()


def copy_weights(module: nn.Module, layer: keras.layers.Layer) -> list[Place]:
    """Give the layer every parameter of its twin."""
    if not layer.built:
        layer.build()
    places = match(module, layer)
    for place in places:
        place.to_keras()
    return places


def twins(layer: keras.layers.Layer, module: nn.Module) -> list[Place]:
    """Give the module random parameters, and the layer the same."""
    return copy_weights(shaken(module), layer)


def gradients_of(module: nn.Module, layer: keras.layers.Layer) -> dict[str, np.ndarray]:
    """The gradients that the twin's parameters hold, by the paths that `weight_gradients` gives the layer's."""
    found = {}
    for place in match(module, layer):
        gradient = place.parameter.grad.numpy()
        found[place.variable.path.partition("/")[2]] = gradient.T if place.transposed else gradient
    return found


def assert_same(layer: Any, module: nn.Module, *inputs: np.ndarray, theirs: Any = None, ours: Any = None) -> None:
    """Give layer and module the same weights, and compare what they make of the inputs, and all gradients.

    `theirs` and `ours` are the other arguments of the calls of module and layer.
    """
    places = twins(layer, module)
    xs = [torch.tensor(x, requires_grad=True) for x in inputs]
    expected = module(*xs, **(theirs or {}))
    of_output = draw(*expected.shape, seed=9)
    (expected * torch.tensor(of_output)).sum().backward()

    def out(*xs: Any) -> Any:
        return layer(*xs, **(ours or {}))

    def loss(*given: Any) -> Any:
        values = list(zip((place.variable for place in places), given[len(inputs) :], strict=True))
        with keras.StatelessScope(state_mapping=values):
            return ops.sum(out(*given[: len(inputs)]) * tensor(of_output))

    given = [tensor(x) for x in inputs]
    close(compiled(out)(*given), expected)
    found = gradients(loss, *given, *(tensor(array(place.variable)) for place in places))
    for gradient, x in zip(found, xs, strict=False):
        close(gradient, x.grad, 1e-4)
    for gradient, place in zip(found[len(xs) :], places, strict=True):
        parameter = place.parameter
        wanted = (torch.zeros_like(parameter) if parameter.grad is None else parameter.grad).numpy()
        wanted = wanted.T if place.transposed else wanted
        np.testing.assert_allclose(gradient, wanted, atol=1e-4, rtol=1e-4, err_msg=place.path)


def assert_same_state(a: nn.Module, b: nn.Module) -> None:
    """The same options, and the same parameters and buffers, of the same dtypes."""
    assert repr(a) == repr(b)
    assert list(a.state_dict()) == list(b.state_dict())
    for name, value in a.state_dict().items():
        torch.testing.assert_close(b.state_dict()[name], value, rtol=0, atol=0, msg=name)
