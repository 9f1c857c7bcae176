"""Finds the layers of a Keras model that compute attention, and how the model calls each of them, for the doctor.

The arguments of a call are recorded as the layer's `call` gets them, with the masks that Keras itself passes.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import keras
from keras import tree

from headwise.keras.to_torch import to_torch
from headwise.keras.watching.context import watch
from headwise.keras.watching.layers import instead
from headwise.keras.watching.paths import paths
from headwise.keras.watching.running import Running, wrap_calls

Example = tuple[tuple[Any, ...], dict[str, Any]]

_PRODUCT = re.compile(r"matmul|einsum|\bdot\b|tensordot|batch_dot|dot_product|\w @ \w")
_OWN = ("keras.", "headwise.keras.")


def attention_layers(model: keras.layers.Layer, run: Callable[[], object]) -> list[tuple[str, Any, Example]]:
    """Find the layers that may compute attention: return (path, layer, arguments) of each, in the order of their calls.

    These are the layers that `headwise.watch` records or lists as attention, and layers whose class has a softmax and a
    product in its code. If one such layer contains another, only the innermost that has weights is returned. `run`
    calls the model once, eagerly. The arguments are those of a layer's first call, as torch tensors.
    """
    calls: dict[int, Example] = {}

    @contextlib.contextmanager
    def before(call: Running) -> Iterator[None]:
        with instead(call.layer, "call", functools.partial(_keeping, calls, id(call.layer))):
            yield

    with watch(model) as seen, wrap_calls(before):
        run()
    layers = paths(model)
    ran = {path: layer for path, layer in layers.items() if id(layer) in calls}
    listed = {site.name for site in seen.coverage() if site.calls}
    chosen = [path for path, layer in ran.items() if (path or type(layer).__name__) in listed or _by_its_code(layer)]
    inner = [path for path in chosen if not any(other != path and _is_in(other, path) for other in chosen)]
    found = dict.fromkeys(_with_weights(path, ran) for path in inner)
    order = list(calls)
    return sorted(
        ((path, ran[path], tree.map_structure(_as_torch, calls[id(ran[path])])) for path in found),
        key=lambda entry: order.index(id(entry[1])),
    )


def _keeping(calls: dict[int, Example], number: int, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        calls.setdefault(number, (args, {name: x for name, x in kwargs.items() if name != "training"}))
        return original(*args, **kwargs)

    return call


def _as_torch(x: Any) -> Any:
    return to_torch(x) if keras.ops.is_tensor(x) else x


def _by_its_code(layer: keras.layers.Layer) -> bool:
    """Return whether the code of a layer's class has a softmax and a product. False for classes of Keras or ours."""
    if type(layer).__module__.startswith(_OWN):
        return False
    try:
        code = inspect.getsource(type(layer))
    except (OSError, TypeError):
        return False
    return "softmax" in code.lower() and bool(_PRODUCT.search(code))


def _is_in(path: str, other: str) -> bool:
    return not other or path.startswith(f"{other}.")


def _with_weights(path: str, layers: dict[str, keras.layers.Layer]) -> str:
    """Return `path` if its layer has weights, else the path of the nearest layer around it that has them and ran."""
    around = path
    while around and not (around in layers and layers[around].weights):
        around = around.rpartition(".")[0]
    return around if around in layers and layers[around].weights else path
