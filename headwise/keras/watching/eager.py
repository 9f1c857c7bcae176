"""Makes `predict`, `evaluate` and `fit` run eagerly, layer by layer, while a model is watched."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras

from headwise.capture.changes import Undo, changed, is_changed

_COMPILED = ("train_function", "test_function", "predict_function")
NOTE = "predict, evaluate and fit ran eagerly, not as a compiled function: outputs may differ in the last digits"


@contextlib.contextmanager
def eagerly(model: keras.layers.Layer) -> Iterator[Callable[[], Iterable[str]]]:
    """Return a context in which the model and all models in it run eagerly. It yields a function that returns notes."""
    models = [layer for layer in model._flatten_layers() if isinstance(layer, keras.Model)]
    models = [each for each in models if not each.run_eagerly or is_changed(("run_eagerly", id(each)))]
    with contextlib.ExitStack() as stack:
        ran = [_ran(each) for each in models]
        for each in models:
            stack.enter_context(changed(("run_eagerly", id(each)), functools.partial(_change, each)))
        yield lambda: [NOTE] if any(each() for each in ran) else []


def _change(model: keras.Model) -> Undo:
    compiled = {name: getattr(model, name, None) for name in _COMPILED}
    is_same = _sameness(model)
    model.run_eagerly = True
    _set(model, dict.fromkeys(compiled))

    def undo() -> None:
        if is_same():
            model.run_eagerly = False
            _set(model, compiled)

    return undo


def _sameness(model: keras.Model) -> Callable[[], bool]:
    """Make a function that tells later whether the model still runs eagerly and was not compiled again since now."""
    loss = getattr(model, "_compile_loss", None)
    return lambda: bool(model.run_eagerly) and getattr(model, "_compile_loss", None) is loss


def _ran(model: keras.Model) -> Callable[[], bool]:
    """Make a function that tells later whether predict, evaluate or fit has run eagerly since now."""
    is_same = _sameness(model)
    return lambda: _compiles(model) and is_same() and any(getattr(model, name, None) is not None for name in _COMPILED)


def _compiles(model: keras.Model) -> bool:
    """Return whether the model otherwise compiles its functions: on torch only if jit_compile is set."""
    return keras.backend.backend() != "torch" or bool(model.jit_compile)


def _set(model: keras.Model, functions: dict[str, Any]) -> None:
    for name, function in functions.items():
        setattr(model, name, function)
