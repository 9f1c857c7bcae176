"""The watcher of Keras models: adds the paths of layers and the running layer to the common watcher."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import torch

from headwise.call import AttentionCall
from headwise.capture.keep import Keeping, TooMuch
from headwise.capture.sites import Place, looks_like_attention
from headwise.capture.watcher import Entry, Watcher
from headwise.errors import HeadwiseError
from headwise.keras.to_torch import Symbolic, to_torch
from headwise.keras.watching.paths import paths
from headwise.keras.watching.running import Running, only_shapes, running
from headwise.records import CallSite, Coverage

# Raised by the backends and headwise for tensors of an unexpected kind or shape.
_UNREADABLE = (HeadwiseError, RuntimeError, TypeError, ValueError, LookupError, AttributeError, NotImplementedError)
_OTHER_SEQUENCE = ("value", "key", "encoder_sequence", "encoder_outputs", "memory", "context")

Arrange = Callable[[torch.Tensor], torch.Tensor]


class LayerPlace(Place):
    """A place in a model: its innermost running layer."""

    def __init__(self, name: str, call: Running, around: Place | None) -> None:
        super().__init__(name, call.layer, call.arguments, call.keywords, around)
        self.call = call

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
        """The arguments of the call, by name."""
        try:
            bound = inspect.signature(self.call.layer.call).bind_partial(*self.arguments, **self.keywords)
        except (TypeError, ValueError):
            return dict(self.keywords)
        return bound.arguments


class LayerWatcher(Watcher):
    """The records and the coverage of one watch of one Keras model, in one thread."""

    def __init__(self, model: keras.layers.Layer, keeping: Keeping) -> None:
        self._layers: dict[str, keras.layers.Layer] = {}
        super().__init__(model, keeping)
        self._strangers: dict[int, keras.layers.Layer] = {}  # layers that ran but do not belong to the model
        self.is_reading = False  # the current computation is part of a layer that is read as a whole
        self._changes: Callable[[], Iterable[str]] = tuple  # the object changed by the watch, if any

    def changes(self, told: Callable[[], Iterable[str]]) -> None:
        """Set the source of notes for the coverage."""
        self._changes = told

    def settle(self) -> None:
        """Store the notes before the change is undone."""
        self.notes += self._changes()
        self._changes = tuple

    def coverage(self) -> Coverage:
        """Every place that computes attention, or may do so."""
        before = self.notes
        self.notes = [*before, *self._changes()]
        try:
            return super().coverage()
        finally:
            self.notes = before

    def has(self, layer: keras.layers.Layer) -> bool:
        """Whether a layer belongs to the model."""
        return self._name_of(layer) is not None

    @contextlib.contextmanager
    def count(self, call: Running) -> Iterator[None]:
        """A layer runs."""
        self._ran(id(call.layer))
        yield

    def place(self) -> Place | None:
        """The innermost running layer of the model; None if its computation is already being read."""
        return None if self.is_reading or _tells_itself() else self.here()

    def here(self) -> LayerPlace | None:
        """The innermost running layer of the model."""
        if threading.get_ident() != self._thread or only_shapes():
            return None
        place: LayerPlace | None = None
        for call in running():
            name = self._name_of(call.layer)
            if name is not None:
                place = LayerPlace(name, call, place)
        return place

    def _name_of(self, layer: keras.layers.Layer) -> str | None:
        if id(layer) not in self._names and id(layer) not in self._strangers:
            self._names = self._paths()  # made on the first call, perhaps
            if id(layer) not in self._names:
                self._strangers[id(layer)] = layer
        return self._names.get(id(layer))

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Within the context, the layer is read as a whole, so its parts need not be recognised."""
        before, self.is_reading = self.is_reading, True
        try:
            yield
        finally:
            self.is_reading = before

    @contextlib.contextmanager
    def trying(self, how: str) -> Iterator[None]:
        """Errors while reading must never break the model: a computation that cannot be read is refused."""
        with self.reading():
            try:
                with torch.no_grad():
                    yield
            except TooMuch:
                raise
            except _UNREADABLE as error:
                place = self.here()
                if place is not None:
                    self.refuse(place, str(error) if isinstance(error, Symbolic) else f"{how}: {error}")

    def seen(self, call: AttentionCall, out: torch.Tensor, arrange: Arrange, how: str, weight: Any = None) -> None:
        """A computation was read; `weight` is W_O [H, E, M] where it is known."""
        place = self.here()
        entry: Entry | None = None if place is None else self.found(place, call, out, arrange, how)
        if entry is not None and self.values and weight is not None:
            entry.keep("output_weight", self._keeper.tensor(to_torch(weight)))

    # The interface that Watcher needs.

    def _paths(self) -> dict[int, str]:
        self._layers = paths(self._model)
        return {id(layer): path or type(layer).__name__ for path, layer in self._layers.items()}

    def start(self) -> None:
        """Nothing: `count` is told of every layer that runs."""

    def outside(self, where: str) -> None:
        """Not what a layer computes that is read as a whole."""
        if self.here() is None:
            super().outside(where)

    def _closed(self) -> Iterator[CallSite]:
        """The layers called attention that ran and of which nothing was seen, on whatever backend."""
        known = {name for name, _ in self._states} | {line.name for line in self.ledger.lines}
        for path, layer in self._attentions():
            runs, name = self._runs[id(layer)], path or type(layer).__name__
            if runs and not any(f"{other}.".startswith(f"{name}.") for other in known):
                reason = f"a {type(layer).__name__} ran, but no softmax(q kᵀ) v was recognised in it"
                yield CallSite(
                    name, "missed", runs, f"{reason}: it may be linear attention, a kernel of its own, or no attention"
                )

    def _attentions(self) -> Iterator[tuple[str, keras.layers.Layer]]:
        self._names = self._paths()
        alike = {path: layer for path, layer in self._layers.items() if looks_like_attention(layer)}
        for path, layer in alike.items():
            inside = f"{path}." if path else ""
            if not any(other != path and other.startswith(inside) for other in alike):
                yield path, layer

    def _count_runs(self, module: keras.layers.Layer) -> None:
        """`count` does."""

    def _looked_for(self) -> str:
        ours = "the layers of headwise.keras, keras.layers and keras.ops.dot_product_attention"
        more = ", and matmul, softmax, matmul" if keras.backend.backend() == "torch" else ""
        return f"{ours}{more}, in every layer"


def _tells_itself() -> bool:
    """Whether the innermost running layer is of this package, and reports its computation itself."""
    calls = running()
    return bool(calls) and type(calls[-1].layer).__module__.startswith("headwise.keras.")
