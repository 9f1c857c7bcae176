"""The layers of a watched Keras model: their paths, which layer is running, how often it ran, and what it computes."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Set
from typing import Any

import keras
import torch

from headwise.call import AttentionCall
from headwise.capture.follower import Arrange, Event, Refusal
from headwise.capture.keep import TooMuch
from headwise.capture.modules import Parts
from headwise.capture.sites import Place, looks_like_attention
from headwise.capture.watcher import Watcher
from headwise.errors import HeadwiseError
from headwise.keras.to_torch import Symbolic, to_torch
from headwise.keras.watching.paths import paths
from headwise.keras.watching.running import only_shapes, running
from headwise.records import CallSite

# The errors that backends and headwise raise for tensors of an unexpected kind or shape.
_UNREADABLE = (HeadwiseError, RuntimeError, TypeError, ValueError, LookupError, AttributeError, NotImplementedError)
_OTHER_SEQUENCE = ("value", "key", "encoder_sequence", "encoder_outputs", "memory", "context")


class LayerPlace(Place):
    """A running layer, in which a computation happens: the innermost layer of the model that is running."""

    @property
    def reads_another_sequence(self) -> bool | None:
        """Whether the layer was called with a second sequence; None if unknown."""
        given = self._given()
        first = next(iter(given.values()), None)
        if isinstance(first, (list, tuple)):  # keras.layers.Attention: [query, value, key]
            first, *others = first
        else:
            others = [given[name] for name in _OTHER_SEQUENCE if name in given]
        if others and any(x is not None and hasattr(x, "shape") for x in others):
            return any(x is not None and x is not first for x in others)
        if sum(len(x.shape) == 3 for x in given.values() if hasattr(x, "shape")) == 1:
            return False
        around = self.around
        return around.reads_another_sequence if around is not None and looks_like_attention(around.module) else None

    def _given(self) -> dict[str, Any]:
        """The arguments of the layer's call, by name."""
        layer: Any = self.module
        try:
            bound = inspect.signature(layer.call).bind_partial(*self.arguments, **self.keywords)
        except (TypeError, ValueError):
            return dict(self.keywords)
        return bound.arguments


class Layers(Parts):
    """The layers of a Keras model that is watched.

    Args:
        model: the model; some of its layers may be made in its first call.
        changed: a function that returns notes about what watching changed in the model.
    """

    def __init__(self, model: keras.layers.Layer, changed: Callable[[], Iterable[str]]) -> None:
        super().__init__()
        self._model, self._changed = model, changed
        more = ", and matmul, softmax, matmul" if keras.backend.backend() == "torch" else ""
        ours = "the layers of headwise.keras, keras.layers and keras.ops.dot_product_attention"
        self.looked_for = f"{ours}{more}, in every layer"
        self._layers: dict[str, keras.layers.Layer] = {}
        self._names: dict[int, str] = {}
        self._strangers: dict[int, keras.layers.Layer] = {}  # layers that ran but do not belong to the model
        self.is_reading = False  # whether a layer is running that is reported as a whole (see `Reader`)

    def notes(self) -> Iterable[str]:
        return self._changed()

    def has(self, part: keras.layers.Layer) -> bool:
        return self._find_name(part) is not None

    def place(self) -> Place | None:
        # A layer of this package reports its computation itself.
        calls = running()
        ours = bool(calls) and type(calls[-1].layer).__module__.startswith("headwise.keras.")
        return None if self.is_reading or ours else self.here()

    def here(self) -> LayerPlace | None:
        """Return the innermost layer of the model that is running; None if no layer is running."""
        place: LayerPlace | None = None
        for call in () if only_shapes() else running():
            name = self._find_name(call.layer)
            if name is not None:
                place = LayerPlace(name, call.layer, call.arguments, call.keywords, place)
        return place

    def is_outside(self) -> bool:
        return self.here() is None

    def closed(self, known: Set[str]) -> Iterator[CallSite]:
        """Yield the layers that ran and whose class name says attention, but in which no attention was recognised."""
        self._find()
        alike = {path: layer for path, layer in self._layers.items() if looks_like_attention(layer)}
        for path, layer in alike.items():
            inside, name = f"{path}." if path else "", path or type(layer).__name__
            if any(other != path and other.startswith(inside) for other in alike):
                continue
            if self._runs[id(layer)] and not any(f"{other}.".startswith(f"{name}.") for other in known):
                reason = f"a {type(layer).__name__} ran, but no softmax(q kᵀ) v was recognised in it"
                maybe = "it may be linear attention, a kernel of its own, or no attention"
                yield CallSite(name, "missed", self._runs[id(layer)], f"{reason}: {maybe}")

    def _find_name(self, layer: keras.layers.Layer) -> str | None:
        if id(layer) not in self._names and id(layer) not in self._strangers:
            self._find()  # layers may be made in the first call
            if id(layer) not in self._names:
                self._strangers[id(layer)] = layer
        return self._names.get(id(layer))

    def _find(self) -> None:
        self._layers = paths(self._model)
        self._names = {id(layer): path or type(layer).__name__ for path, layer in self._layers.items()}


class Reader:
    """Reports attention to a `Watcher`, for layers whose computation is known without following their operations."""

    def __init__(self, layers: Layers, watcher: Watcher) -> None:
        self.layers, self._watcher = layers, watcher

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Return a context inside which operations are not recognised one by one: the whole layer is reported."""
        before, self.layers.is_reading = self.layers.is_reading, True
        try:
            yield
        finally:
            self.layers.is_reading = before

    @contextlib.contextmanager
    def trying(self, how: str) -> Iterator[None]:
        """Return a context inside which an error does not reach the model: the computation is listed as refused."""
        with self.reading():
            try:
                with torch.no_grad():
                    yield
            except TooMuch:
                raise
            except _UNREADABLE as error:
                place = self.layers.here()
                if place is not None:
                    reason = str(error) if isinstance(error, Symbolic) else f"{how}: {error}"
                    self._watcher.refuse(place, Refusal(reason))

    def seen(self, call: AttentionCall, out: torch.Tensor, arrange: Arrange, how: str, weight: Any = None) -> None:
        """Report one computation, recognised as `how`. `weight`: the output projection W_O [H, E, M], if known."""
        place = self.layers.here()
        if place is not None:
            event = Event(call, out, arrange, how)
            if weight is not None:
                event.project = lambda tell: tell(to_torch(weight).detach().clone())
            self._watcher.attention(place, event)
