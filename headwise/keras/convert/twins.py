"""Converts a PyTorch module to its twin (the Keras layer with the same options and weights), and back."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import keras
import torch
from torch import nn

from headwise import nn as torch_nn
from headwise.errors import ArgumentError, CheckpointError, DtypeError
from headwise.keras.convert.options import READERS
from headwise.keras.convert.weights import TORCH_DTYPES, match, read_dtype
from headwise.keras.functional import ALL_KERNELS
from headwise.keras.layer import TWINS, Layer
from headwise.kernels import KERNELS

# Modules of PyTorch that headwise.nn converts.
PYTORCH: dict[type[nn.Module], Callable[[Any], nn.Module]] = {
    nn.MultiheadAttention: torch_nn.MultiHeadAttention.from_torch,
    nn.TransformerEncoderLayer: torch_nn.EncoderLayer.from_torch,
    nn.TransformerDecoderLayer: torch_nn.DecoderLayer.from_torch,
}
KERAS_ALONE = ("seed",)  # options of Keras layers alone: PyTorch has one generator for all modules


def from_torch(
    cls: type[Layer], module: nn.Module, *, kernel: str | None = None, dtype: Any = None, **kwargs: Any
) -> Any:
    """Convert a PyTorch module to its Keras layer: see `Layer.from_torch`."""
    if type(module) in PYTORCH:
        module = PYTORCH[type(module)](module)
    twin = next((twin for ours, twin in TWINS.items() if issubclass(cls, ours)), None)
    if twin is None:
        raise ArgumentError(f"from_torch: expected a layer that has a twin in PyTorch. Received: {cls.__name__}")
    if type(module) is not twin:
        raise DtypeError(
            f"from_torch: expected a {_name(twin)}, not a subclass, which may compute something else. Received: "
            f"{_name(type(module))}"
        )
    policy = (read_dtype(module) or keras.config.dtype_policy()) if dtype is None else dtype
    layer = _Maker(kernel, policy).layer(module, cls, **kwargs)
    layer.build(None)
    # The dtype of a variable is the requested one, the dtype of its value is the actual one.
    made = {keras.backend.standardize_dtype(weight.value.dtype) for weight in layer.weights}
    wrong = made - {keras.dtype_policies.get(policy).variable_dtype}
    if wrong:
        raise ArgumentError(
            f"dtype: expected one that the backend has. Received: {policy!r}, of which it makes {', '.join(wrong)}. "
            "(JAX has float64 by jax.config.update('jax_enable_x64', True).) Or pass dtype="
        )
    places = match(module, layer)
    _check_unchanged(module, layer)
    for place in places:
        place.to_keras()
    return layer


def to_torch(layer: Layer, *, kernel: str | None = None) -> nn.Module:
    """Convert a Keras layer to its PyTorch module: see `Layer.to_torch`."""
    if not layer.built:
        raise ArgumentError(
            f"to_torch: {type(layer).__name__} {layer.name!r} is not built: call layer.build(), or the layer once"
        )
    module = _Twin(kernel).module(layer)
    places = match(module, layer)
    dtypes = sorted({place.variable.dtype for place in places})
    if len(dtypes) > 1:
        raise ArgumentError(f"to_torch: expected weights of one dtype. Received: {', '.join(dtypes)}")
    trainable = {id(weight) for weight in layer.trainable_weights}
    for place in places:
        place.to_torch(trained=id(place.variable) in trainable)
    return module.eval()


class _Maker:
    """Makes Keras layers for PyTorch modules, without weights. A submodule that is used twice becomes one layer."""

    def __init__(self, kernel: str | None, dtype: Any) -> None:
        self.kernel, self.dtype = kernel, dtype
        self._made: dict[int, Any] = {}

    def layer(self, module: nn.Module, cls: type[Layer] | None = None, **kwargs: Any) -> Any:
        """Make the Keras layer for a module: of class `cls`, or if None of the class that is the module's twin."""
        if id(module) in self._made:
            return self._made[id(module)]
        if cls is None:
            cls = next((ours for ours, twin in TWINS.items() if twin is type(module)), None)
        if cls is None:
            raise ArgumentError(f"from_torch: {_name(type(module))} has no twin in headwise.keras")
        options = READERS[type(module)](module, self.layer)
        if "kernel" in options:
            options["kernel"] = _kernel("from_torch", options["kernel"], self.kernel, ALL_KERNELS)
        made = self._made[id(module)] = cls(**options, dtype=self.dtype, **kwargs)
        return made


class _Twin:
    """Makes PyTorch modules for Keras layers, with new weights. A sublayer that is used twice becomes one module."""

    def __init__(self, kernel: str | None) -> None:
        self.kernel = kernel
        self._made: dict[int, nn.Module] = {}

    def module(self, layer: Layer, cls: type[nn.Module] | None = None) -> nn.Module:
        """Make the PyTorch module with a layer's options: of class `cls`, or if None of the layer's twin."""
        if id(layer) in self._made:
            return self._made[id(layer)]
        cls = TWINS.get(type(layer)) if cls is None else cls
        if cls is None:
            raise ArgumentError(
                f"to_torch: expected a layer of headwise.keras, not a subclass, which may compute something else. "
                f"Received: {_name(type(layer))}"
            )
        accepted = inspect.signature(cls).parameters
        options: dict[str, Any] = {}
        for name, value in layer._given.items():
            if name in accepted:
                value = tuple(value) if isinstance(value, list) else value  # a config has lists
                options[name] = self.module(value) if isinstance(value, Layer) else value
            elif name not in KERAS_ALONE and value != inspect.signature(type(layer)).parameters[name].default:
                raise ArgumentError(f"{name}: {_name(cls)} has no such option. Received: {name}={value!r}")
        if "kernel" in options:
            options["kernel"] = _kernel("to_torch", options["kernel"], self.kernel, ("auto", *KERNELS))
        made = self._made[id(layer)] = cls(**options)
        made.to(TORCH_DTYPES[layer.variable_dtype])
        return made


def _kernel(what: str, own: str, asked: str | None, known: tuple[str, ...]) -> str:
    kernel = own if asked is None else asked
    if kernel not in known:
        raise ArgumentError(
            f"kernel: expected a kernel that both sides have: {', '.join(known)}. Received: kernel={kernel!r}. "
            f'Pass another one: {what}(…, kernel="auto")'
        )
    return kernel


def _check_unchanged(module: nn.Module, layer: Layer) -> None:
    """Raise CheckpointError if a submodule was replaced: the module must be like a new module with its options."""
    with torch.device("meta"):
        made = _Twin("auto").module(layer, type(module))
    received, expected = (re.sub(r",? *kernel='\w+'", "", repr(x)).splitlines() for x in (module, made))
    if received != expected:
        n = next(
            (i for i, (a, b) in enumerate(zip(received, expected, strict=False)) if a != b),
            min(len(received), len(expected)) - 1,
        )
        raise CheckpointError(
            f"from_torch: a part of the module was replaced. Expected {expected[n].strip()!r}. "
            f"Received: {received[n].strip()!r}"
        )


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
