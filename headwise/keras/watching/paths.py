"""The paths of the layers of a model, which are the same on every backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import keras


def paths(model: keras.layers.Layer) -> dict[str, keras.layers.Layer]:
    """Find all layers of a model, by path; the path of the model is "". A layer that is used twice has one path.

    A path consists of names, such as "encoder.0.mlp". In a functional or sequential model, a layer has its own name; in
    any other layer, the name of the attribute that holds it, or its own name if this attribute is private.
    """
    found: dict[int, str] = {}
    layers: dict[str, keras.layers.Layer] = {}

    def walk(layer: keras.layers.Layer, path: str) -> None:
        if id(layer) in found:
            return
        while path in layers:  # two layers have the same name
            path += "_"
        found[id(layer)], layers[path] = path, layer
        for name, part in _parts(layer):
            walk(part, f"{path}.{name}" if path else name)

    walk(model, "")
    return layers


def _parts(layer: keras.layers.Layer) -> Iterator[tuple[str, keras.layers.Layer]]:
    """Yield the direct sublayers of a layer, as (name, layer)."""
    # In a sequential or functional model, layers have names and are not attributes.
    if isinstance(layer, keras.Sequential) or (isinstance(layer, keras.Model) and hasattr(layer, "_operations")):
        for part in layer.layers:
            yield _dotless(part.name), part
    attributes = {**vars(layer), **vars(layer).get("_modules", {})}  # torch keeps layers in _modules
    for name, value in attributes.items():
        if not name.startswith("_"):
            yield from _named(name, value)
    for part in layer._flatten_layers(include_self=False, recursive=False):
        yield _dotless(part.name), part


def _named(name: str, value: Any) -> Iterator[tuple[str, keras.layers.Layer]]:
    if isinstance(value, keras.layers.Layer):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for i, each in enumerate(value):
            yield from _named(f"{name}.{i}", each)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            if isinstance(key, str):
                yield from _named(f"{name}.{key}", each)


def _dotless(name: str) -> str:
    return name.replace(".", "_")
