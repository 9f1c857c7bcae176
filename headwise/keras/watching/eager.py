"""Runs `predict`, `evaluate` and `fit` eagerly, layer by layer, while a model is watched."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import torch

_COMPILED = ("train_function", "test_function", "predict_function")
NOTE = "predict, evaluate and fit ran eagerly, not as a compiled function: outputs may differ in the last digits"


@contextlib.contextmanager
def eagerly(model: keras.layers.Layer) -> Iterator[Callable[[], Iterable[str]]]:
    """Within the context, the model and every model in it run layer by layer. Yields the notes."""
    models = [layer for layer in model._flatten_layers() if isinstance(layer, keras.Model)]
    with contextlib.ExitStack() as stack:
        if keras.backend.backend() == "torch" and any(_compiles(each) for each in models):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        changed = [stack.enter_context(_changed(each)) for each in models if not each.run_eagerly]
        yield lambda: [NOTE] if any(ran() for ran in changed) else []


@contextlib.contextmanager
def _changed(model: keras.Model) -> Iterator[Callable[[], bool]]:
    compiled = {name: getattr(model, name, None) for name in _COMPILED}
    loss = getattr(model, "_compile_loss", None)

    def same() -> bool:
        """Whether `compile` was not called meanwhile."""
        return bool(model.run_eagerly) and getattr(model, "_compile_loss", None) is loss

    def ran() -> bool:
        return _compiles(model) and same() and any(getattr(model, name, None) is not None for name in _COMPILED)

    model.run_eagerly = True
    _set(model, dict.fromkeys(compiled))
    try:
        yield ran
    finally:
        if same():
            model.run_eagerly = False
            _set(model, compiled)


def _compiles(model: keras.Model) -> bool:
    """Whether the model would compile: on torch only on request."""
    return keras.backend.backend() != "torch" or bool(model.jit_compile)


def _set(model: keras.Model, functions: dict[str, Any]) -> None:
    for name, function in functions.items():
        setattr(model, name, function)
