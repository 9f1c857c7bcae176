"""What upper layers do for lower ones. Lower layers call it from here, so that nothing is imported upwards.

`headwise/__init__.py` stands above all layers and fills this in. It always runs first, and what it registers imports
what it needs when it is called: this file imports nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Bundle = dict[str, Any]  # what a notebook may show, by MIME type


class Framework(NamedTuple):
    """What headwise can do with the models of another framework."""

    watch: Callable[..., Any]  # as `headwise.watch`
    as_torch: Callable[[Any], Any]  # a layer -> a torch module that computes the same
    # (a layer without weights, what makes it again) -> a torch module for trial calls, whose `layer` is that of the
    # last one; None for a layer that has its weights
    unbuilt: Callable[[Any, Callable[[], Any] | None], Any] = lambda layer, make: None
    # (a model, what runs it) -> (path, layer, (args, kwargs) as torch tensors) of each layer that may compute attention
    attention_layers: Callable[[Any, Callable[[], object]], list[tuple[str, Any, Any]]] = lambda model, run: []


frameworks: dict[str, Framework] = {}  # by the package that their classes are from, such as "keras"


def framework_of(model: object) -> Framework | None:
    """The framework that the class of a model, or one of its bases, is from; None if it is none of `frameworks`."""
    return framework_of_class(type(model))


def framework_of_class(cls: type) -> Framework | None:
    """The framework that a class, or one of its bases, is from; None if it is none of `frameworks`."""
    packages = (each.__module__.partition(".")[0] for each in cls.__mro__)
    return next((frameworks[package] for package in packages if package in frameworks), None)


def _as_text(shown: Any) -> tuple[Bundle, Bundle]:
    return {"text/plain": repr(shown)}, {}


# What a notebook shows of a record or of a Seen, and its metadata.
in_notebook: Callable[[Any], tuple[Bundle, Bundle]] = _as_text
