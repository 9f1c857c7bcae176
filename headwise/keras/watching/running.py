"""Knows which layers are running: while a model is watched, `keras.layers.Layer` reports each call of a layer.

The class is changed, not each layer, so that layers created in the first call report their calls too.
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

from headwise.capture.changes import changed, replaced
from headwise.scope import Scope

Before = Callable[["Running"], contextlib.AbstractContextManager[None]]


@dataclasses.dataclass(frozen=True, eq=False)
class Running:
    """One call of a layer that is running."""

    layer: keras.layers.Layer
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


_thread = threading.local()


def running() -> tuple[Running, ...]:
    """Return this thread's calls that have not ended, the innermost last; calls that only build are left out."""
    calls: tuple[Running, ...] = getattr(_thread, "calls", ())
    return calls


def _telling(original: Any) -> Any:
    @functools.wraps(original)
    def called(layer: keras.layers.Layer, *args: Any, **kwargs: Any) -> Any:
        told = _TOLD.here()
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


_TOLD: Scope[Before] = Scope()


@contextlib.contextmanager
def wrap_calls(before: Before) -> Iterator[None]:
    """Return a context. In it, each call of a layer runs inside the context that `before(call)` returns."""
    change = functools.partial(replaced, keras.layers.Layer, "__call__", _telling)
    with changed("calls of Keras layers", change), _TOLD.open(before):
        yield


def only_shapes() -> bool:
    """Return whether Keras is only inferring shapes, to build a model, without computing."""
    from keras.src.backend.common.symbolic_scope import in_symbolic_scope

    return bool(in_symbolic_scope())


def _only_shapes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return only_shapes() or any(isinstance(x, keras.KerasTensor) for x in tree.flatten((args, kwargs)))
