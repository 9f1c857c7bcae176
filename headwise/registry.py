"""Functions of upper layers that lower layers call from here, so that nothing is imported upwards.

`headwise/__init__.py` is above all layers and stores these functions here. It always runs first, and the functions
import what they need when they are called: this file imports nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Bundle = dict[str, Any]  # representations for a notebook, by MIME type


class Framework(NamedTuple):
    """The functions with which headwise works on models of another framework, such as Keras."""

    watch: Callable[..., Any]  # as `headwise.watch`
    as_torch: Callable[[Any], Any]  # a layer -> a torch module that computes the same
    # (a layer without weights, the function that makes it again) -> a torch module for trial calls, whose `layer` is
    # the layer of the last trial call; None for a layer that has its weights
    unbuilt: Callable[[Any, Callable[[], Any] | None], Any] = lambda layer, make: None
    # (a model, the function that runs it) -> (path, layer, (args, kwargs) as torch tensors) of each layer that may
    # compute attention
    attention_layers: Callable[[Any, Callable[[], object]], list[tuple[str, Any, Any]]] = lambda model, run: []


frameworks: dict[str, Framework] = {}  # by the package of their classes, such as "keras"


def find_framework(model: object) -> Framework | None:
    """Find the functions for a model's framework, by its class and base classes; None if `frameworks` has none."""
    return find_framework_of_class(type(model))


def find_framework_of_class(cls: type) -> Framework | None:
    """Find the functions for a class's framework, by the class and its bases; None if `frameworks` has none."""
    packages = (each.__module__.partition(".")[0] for each in cls.__mro__)
    return next((frameworks[package] for package in packages if package in frameworks), None)


def _as_text(shown: Any) -> tuple[Bundle, Bundle]:
    return {"text/plain": repr(shown)}, {}


# The representation of a record or a Seen in a notebook, and its metadata.
in_notebook: Callable[[Any], tuple[Bundle, Bundle]] = _as_text
