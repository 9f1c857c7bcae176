"""Pairs each weight of a PyTorch module with the weight of its Keras twin: submodules have the same names in both.

A linear map is [out, in] in PyTorch and [in, out] in Keras; the weights of norms and embeddings have other names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import torch
from keras import ops
from torch import nn

from headwise.errors import ArgumentError, CheckpointError
from headwise.keras.call import precision
from headwise.nn.norm import LayerNorm, RMSNorm

# The PyTorch class of a submodule -> its Keras class, and the PyTorch name of each weight -> its Keras name.
PARTS: dict[type[nn.Module], tuple[type[keras.layers.Layer], dict[str, str]]] = {
    nn.Linear: (keras.layers.Dense, {"weight": "kernel", "bias": "bias"}),
    nn.Embedding: (keras.layers.Embedding, {"weight": "embeddings"}),
    **dict.fromkeys((LayerNorm, nn.LayerNorm), (keras.layers.LayerNormalization, {"weight": "gamma", "bias": "beta"})),
    **dict.fromkeys((RMSNorm, nn.RMSNorm), (keras.layers.RMSNormalization, {"weight": "scale"})),
}
TORCH_DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "float16", "bfloat16")}


@dataclasses.dataclass(frozen=True)
class Place:
    """A weight of a module and its Keras twin: path in PyTorch, parameter, variable, and whether it is transposed."""

    path: str
    parameter: nn.Parameter
    variable: keras.Variable
    transposed: bool

    def to_keras(self) -> None:
        """Copy the value of the parameter to the variable."""
        x = self.parameter.detach().cpu()
        values = (x if x.dtype == torch.float64 else x.float()).numpy()
        self.variable.assign(values.T if self.transposed else values)
        if not self.parameter.requires_grad:
            self.variable.trainable = False

    def to_torch(self, *, trained: bool) -> None:
        """Copy the value of the variable to the parameter."""
        values = np.array(ops.convert_to_numpy(ops.cast(self.variable, precision(self.variable))))
        with torch.no_grad():
            self.parameter.copy_(torch.from_numpy(values.T if self.transposed else values))
        self.parameter.requires_grad_(trained)


def match(module: nn.Module, layer: keras.layers.Layer) -> list[Place]:
    """Pair each weight of a module with the same weight of its Keras twin, one to one.

    Raises:
        CheckpointError: a weight that has no partner, two partners, or a partner of another shape.
        ArgumentError: a submodule that is quantised, or that has LoRA.
    """
    found = list(_places(module, layer, ""))
    of_parameter: dict[int, Place] = {}
    of_variable: dict[int, Place] = {}
    for place in found:
        one = of_parameter.setdefault(id(place.parameter), place)
        other = of_variable.setdefault(id(place.variable), place)
        if one.variable is not place.variable or other.parameter is not place.parameter:
            twice = one if one.variable is not place.variable else other
            raise CheckpointError(
                f"{place.path}: expected separate weights. Received: weights shared with {twice.path} in one "
                "framework only"
            )
    if lost := [name for name in module.state_dict() if name not in {place.path for place in found}]:
        raise CheckpointError(f"{', '.join(lost)}: there is no place for it in {type(layer).__name__} of Keras")
    if lost := [weight.path for weight in layer.weights if id(weight) not in of_variable]:
        raise CheckpointError(f"{', '.join(lost)}: there is no place for it in {type(module).__name__} of PyTorch")
    return list(of_parameter.values())


def read_dtype(module: nn.Module) -> str | None:
    """Return the dtype that all parameters of a module have, by its name in Keras; None if it has no parameters."""
    dtypes = {parameter.dtype for parameter in module.parameters()}
    if not dtypes:
        return None
    names = sorted(str(dtype).removeprefix("torch.") for dtype in dtypes)
    if len(names) > 1 or names[0] not in TORCH_DTYPES:
        raise ArgumentError(
            f"from_torch: expected parameters of one dtype, {', '.join(TORCH_DTYPES)}. Received: {', '.join(names)}. "
            "Convert the module by .to(dtype) first"
        )
    return names[0]


def _places(module: nn.Module, layer: Any, path: str) -> Iterator[Place]:
    _check_plain(module, layer, path)
    _, names = PARTS.get(type(module), (None, {}))
    for name, parameter in module.named_parameters(recurse=False):
        variable = getattr(layer, names.get(name, name), None)
        if not isinstance(variable, keras.Variable):
            raise CheckpointError(f"{path}{name}: there is no place for it in {type(layer).__name__} of Keras")
        transposed = type(module) is nn.Linear and name == "weight"
        shape = tuple(reversed(parameter.shape)) if transposed else tuple(parameter.shape)
        if tuple(variable.shape) != shape:
            raise CheckpointError(
                f"{path}{name}: expected the same shape in both. Received: {list(parameter.shape)} in PyTorch, "
                f"{list(variable.shape)} in Keras"
            )
        yield Place(path + name, parameter, variable, transposed)
    for name, child in module._modules.items():  # named_children leaves out the second occurrence of a submodule
        if child is None or not child.state_dict():
            continue
        if isinstance(module, nn.ModuleList):
            other = layer[int(name)] if int(name) < len(layer) else None
        else:
            other = getattr(layer, name, None)
        if other is None:
            raise CheckpointError(f"{path}{name}: there is no such part in Keras's twin")
        yield from _places(child, other, f"{path}{name}.")


def _check_plain(module: nn.Module, layer: Any, path: str) -> None:
    """Raise ArgumentError if a submodule computes with more than its plain weights."""
    where = path.rstrip(".") or type(module).__name__
    for parameter in module.parameters(recurse=False):
        if type(parameter) is not nn.Parameter or parameter.is_meta or parameter.dtype not in TORCH_DTYPES.values():
            raise ArgumentError(
                f"{where}: expected parameters that are plain tensors of floats, with values. Received: "
                f"{type(parameter.data).__name__}, {parameter.dtype} on {parameter.device}"
            )
    for kind in PARTS:
        if isinstance(module, kind) and type(module) not in PARTS:
            raise ArgumentError(
                f"{where}: expected a plain nn.{kind.__name__}, which computes with its weight only. Received: "
                f"{type(module).__name__}. Merge adapters and wrappers first"
            )
    wanted = PARTS[type(module)][0] if type(module) in PARTS else None
    if wanted is not None and type(layer) is not wanted:
        raise ArgumentError(
            f"{where}: expected a keras.layers.{wanted.__name__} in Keras. Received: {type(layer).__name__}"
        )
    check_plain_keras(layer, where)


def check_plain_keras(layer: Any, where: str) -> None:
    """Raise ArgumentError if a Keras layer is quantised or has LoRA."""
    if getattr(layer, "quantization_mode", None):
        raise ArgumentError(
            f"{where}: expected weights of floats. Received: a layer quantised to {layer.quantization_mode}. Convert "
            "it before it is quantised"
        )
    if getattr(layer, "lora_enabled", False):
        raise ArgumentError(
            f"{where}: expected a layer without LoRA. Received: LoRA of rank {layer.lora_rank}. Merge it first: what "
            "save_weights wrote, a layer without LoRA loads merged"
        )
