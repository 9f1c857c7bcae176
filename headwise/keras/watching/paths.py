"""What the layers of a model are called: their paths, the same on every backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import keras


def paths(model: keras.layers.Layer) -> dict[str, keras.layers.Layer]:
    """Every layer by its path, the model itself by "". A layer that stands in several places has the first.

    A layer of a functional or sequential model goes by its name, any other by the attribute that it is,
    "encoder.0.mlp"; by its name too where that attribute is private.
    """
    found: dict[int, str] = {}
    layers: dict[str, keras.layers.Layer] = {}

    def walk(layer: keras.layers.Layer, path: str) -> None:
        if id(layer) in found:
            return
        while path in layers:  # two layers of one name
            path += "_"
        found[id(layer)], layers[path] = path, layer
        for name, part in _parts(layer):
            walk(part, f"{path}.{name}" if path else name)

    walk(model, "")
    return layers


def _parts(layer: keras.layers.Layer) -> Iterator[tuple[str, keras.layers.Layer]]:
    """The layers that a layer is made of, and what it calls them."""
    if isinstance(layer, (keras.Sequential, keras.models.Model)) and _has_graph(layer):
        for part in layer.layers:
            yield _dotless(part.name), part
    attributes = {**vars(layer), **vars(layer).get("_modules", {})}  # torch keeps layers apart
    for name, value in attributes.items():
        if not name.startswith("_"):
            yield from _named(name, value)
    for part in layer._flatten_layers(include_self=False, recursive=False):
        yield _dotless(part.name), part


def _has_graph(layer: keras.layers.Layer) -> bool:
    """Whether a model is sequential or functional: what it is made of has names, and is no attribute."""
    return isinstance(layer, keras.Sequential) or hasattr(layer, "_operations")


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
