"""Converts constructor arguments to plain data and back, for `get_config` of every layer of this package.

Masks and RoPE scalings are not Keras objects, so they are stored as names and numbers.
"""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import keras
import torch
from keras.src.backend.common.global_state import get_global_attribute  # it has no public name

from headwise.errors import ArgumentError
from headwise.masks import Mask
from headwise.masks.mask import KINDS
from headwise.nn.positions import DynamicNTK, Linear, Llama3, LongRope, Proportional, RopeScaling, Yarn

PACKAGE = "headwise"

_SCALINGS = (DynamicNTK, Linear, Llama3, LongRope, Proportional, Yarn)
_CLASSES: dict[str, type[Any]] = {cls.__name__: cls for cls in (*KINDS.values(), *_SCALINGS)}


def to_config(value: Any) -> Any:
    """Convert a constructor's argument to plain data, which JSON can hold."""
    if isinstance(value, (Mask, RopeScaling)):
        return _to_data(value)
    if isinstance(value, (list, tuple)):
        return [to_config(each) for each in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    config: Any = keras.saving.serialize_keras_object(value)
    if isinstance(config, dict) and get_global_attribute("shared_objects/id_to_config_map") is not None:
        # Inside `model.save`: two layers may share one T5Buckets, which must stay one object when the file is loaded.
        # Keras itself marks an object as shared only at its second occurrence, after it copied the first description.
        config["shared_object_id"] = id(value)
    return config


def from_config(value: Any) -> Any:
    """Convert plain data that `to_config` returned back to the argument."""
    if isinstance(value, dict) and "headwise" in value:
        return _from_data(value)
    if isinstance(value, dict) and "class_name" in value:
        return keras.saving.deserialize_keras_object(value)
    if isinstance(value, list):
        return [from_config(each) for each in value]
    return value


def _to_data(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return {"dtype": str(value.dtype).removeprefix("torch."), "values": value.tolist()}
    if isinstance(value, tuple):
        return [_to_data(each) for each in value]
    if not isinstance(value, (Mask, RopeScaling)):
        return value
    name = type(value).__name__
    if name not in _CLASSES:
        raise ArgumentError(
            f"{value!r}: a mask defined by code cannot be saved. Use a mask of headwise.masks, or "
            "masks.from_tensor(mask.to_bool(length)). Received: " + name
        )
    return {"headwise": name} | {f.name: _to_data(getattr(value, f.name)) for f in dataclasses.fields(cast(Any, value))}


def _from_data(data: Any) -> Any:
    if isinstance(data, list):
        return tuple(_from_data(each) for each in data)
    if isinstance(data, dict) and "values" in data:
        return torch.tensor(data["values"], dtype=getattr(torch, data["dtype"]))
    if not isinstance(data, dict):
        return data
    name = data["headwise"]
    if not isinstance(name, str) or name not in _CLASSES:
        raise ArgumentError(f"config: expected one of {', '.join(_CLASSES)}. Received: class={name!r}")
    return _CLASSES[name](**{key: _from_data(value) for key, value in data.items() if key != "headwise"})


@keras.saving.register_keras_serializable(PACKAGE)
class MaskArgument:
    """Holds a mask of `headwise.masks` that is passed to a layer's call, so that a functional model can be saved."""

    def __init__(self, mask: Any) -> None:
        self.mask = from_config(mask)

    def get_config(self) -> dict[str, Any]:
        """The mask as plain data."""
        return {"mask": to_config(self.mask)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> MaskArgument:
        """Make the object that a result of `get_config` describes."""
        return cls(**config)


def wrapped(value: Any) -> Any:
    """Wrap a mask as a `MaskArgument`, so that a model can be saved with it; return anything else unchanged."""
    return MaskArgument(value) if isinstance(value, Mask) else value


def unwrapped(value: Any) -> Any:
    """Undo `wrapped`: return the mask in a `MaskArgument`; return anything else unchanged."""
    return value.mask if isinstance(value, MaskArgument) else value
