"""Which layers are running: during a watch, `keras.layers.Layer` reports calls of layers.

The class is changed, not the layers, so that layers created in the first call are included. The last watch that ends
undoes the change.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
from keras import tree

Before = Callable[["Running"], contextlib.AbstractContextManager[None]]


@dataclasses.dataclass(frozen=True, eq=False)
class Running:
    """One call of a layer."""

    layer: keras.layers.Layer
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


class Changed:
    """A function of Keras that is replaced while there are listeners.

    Args:
        owner: the object with the function.
        name: the name of the function.
        make: returns the replacement, given the original and a function that returns this thread's listeners, in order.
    """

    def __init__(self, owner: Any, name: str, make: Callable[[Any, Callable[[], list[Any]]], Any]) -> None:
        self._owner, self._name, self._make = owner, name, make
        self._listeners: list[tuple[int, Any]] = []  # (thread, who)
        self._original: Any = None
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def heard_by(self, listener: Any) -> Iterator[None]:
        """Within the context, `listener` is a listener of this thread."""
        mine = (threading.get_ident(), listener)
        with self._lock:
            self._listeners.append(mine)
            if self._original is None:
                self._original = getattr(self._owner, self._name)
                setattr(self._owner, self._name, self._make(self._original, self._here))
        try:
            yield
        finally:
            with self._lock:
                self._listeners.remove(mine)
                if not self._listeners:
                    setattr(self._owner, self._name, self._original)
                    self._original = None

    def _here(self) -> list[Any]:
        me = threading.get_ident()
        return [listener for thread, listener in self._listeners if thread == me]


_thread = threading.local()


def running() -> tuple[Running, ...]:
    """The calls of this thread that have not ended, the innermost last; none while a model is only being built."""
    calls: tuple[Running, ...] = getattr(_thread, "calls", ())
    return calls


def _telling(original: Any, listeners: Callable[[], list[Before]]) -> Any:
    @functools.wraps(original)
    def called(layer: keras.layers.Layer, *args: Any, **kwargs: Any) -> Any:
        told = listeners()
        if not told or _only_shapes(args, kwargs):
            return original(layer, *args, **kwargs)
        outside = running()
        call = Running(layer, args, kwargs)
        _thread.calls = (*outside, call)
        try:
            with contextlib.ExitStack() as stack:
                for before in told:
                    stack.enter_context(before(call))
                return original(layer, *args, **kwargs)
        finally:
            _thread.calls = outside

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.autograph.experimental.do_not_convert(called)
    return called


_calls = Changed(keras.layers.Layer, "__call__", _telling)


def told_of_calls(before: Before) -> contextlib.AbstractContextManager[None]:
    """Within the context, each call of a layer in this thread runs inside `before(call)`."""
    return _calls.heard_by(before)


def only_shapes() -> bool:
    """Whether Keras only infers shapes while building, without computing."""
    from keras.src.backend.common.symbolic_scope import in_symbolic_scope

    return bool(in_symbolic_scope())


def _only_shapes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return only_shapes() or any(isinstance(x, keras.KerasTensor) for x in tree.flatten((args, kwargs)))
