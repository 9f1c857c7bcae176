"""Wraps a Keras layer that has no weights yet as a torch module, so that the doctor can try how the layer is called.

A call with unsuitable inputs raises an error; each call makes a new layer, because building fixes a layer's sizes.

module = unbuilt(layer, make)            # make() returns a new layer without weights
module(torch.randn(2, 5, 16))            # this call makes a new layer, and builds it
module.layer                             # the layer of the last call, which has its weights now
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import torch
from keras import tree
from torch import nn

from headwise.keras.as_torch import Part, is_built, named_as
from headwise.keras.autograd import from_torch
from headwise.keras.to_torch import to_torch
from headwise.keras.watching.paths import paths


def unbuilt(layer: keras.layers.Layer, make: Callable[[], keras.layers.Layer] | None) -> Unbuilt | None:
    """Wrap a layer that is not built; return None if it is built, or (without `make`) a torch module.

    Args:
        layer: any Keras layer.
        make: a function that returns a new layer for each call, because a layer keeps the shapes of its first call.
            None = new layers are made from the layer's config.
    """
    if not isinstance(layer, keras.layers.Layer) or is_built(layer):
        return None
    if make is None and isinstance(layer, nn.Module):
        return None
    of: Any = type(layer)
    module: Unbuilt = named_as(of, Unbuilt)(layer, make or (lambda: of.from_config(layer.get_config())))
    return module


class Unbuilt(Part):
    """The module that `unbuilt` returns. Its outputs have no gradients."""

    def __init__(self, layer: keras.layers.Layer, make: Callable[[], keras.layers.Layer]) -> None:
        super().__init__(layer)
        self.layer = layer  # the layer that was called last
        self._make = make
        self.weights_to_come = nn.UninitializedParameter()
        for path, part in paths(layer).items():  # for their sizes
            if path:
                self.add_module(path.replace(".", "_"), Part(part))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Make a new layer, and return its output for these torch tensors."""
        self.layer = self._make()
        plain = tree.map_structure(lambda x: from_torch(x) if isinstance(x, torch.Tensor) else x, (args, kwargs))
        out = self.layer(*plain[0], **plain[1])
        return tree.map_structure(lambda x: to_torch(x) if hasattr(x, "dtype") else x, out)
