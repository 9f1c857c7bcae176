"""`watch` for Keras models."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from headwise.capture.context import Watch
from headwise.capture.inside import following
from headwise.capture.keep import Keeping
from headwise.capture.watcher import Watcher
from headwise.errors import ArgumentError, DtypeError
from headwise.keras.call import Call
from headwise.keras.functional import listening
from headwise.keras.to_torch import call_to_torch, to_torch
from headwise.keras.watching.eager import eagerly
from headwise.keras.watching.layers import read_layers, read_operations
from headwise.keras.watching.parts import Layers, Reader
from headwise.keras.watching.running import Running, wrap_calls


def watch(model: keras.layers.Layer, *, tokens: Any = None, **options: Any) -> Watch:
    """`headwise.watch` for a Keras model or layer, on every backend: the same records, of torch tensors.

        with headwise.watch(model) as seen:
            model.predict(x)
        seen["encoder.0.attention"].weights(rows=5)

    It records the layers of headwise.keras; keras.layers.MultiHeadAttention, GroupQueryAttention and Attention with
    their subclasses; and keras.ops.dot_product_attention in any layer. On PyTorch it also records the sequence matmul,
    softmax, matmul. `seen.coverage()` lists other layers whose class name says attention as missed. Inside the context
    predict, evaluate and fit run eagerly; nothing is recorded in functions that other code compiled. In functional and
    sequential models a layer is named by its name, otherwise by its attribute.

    On TensorFlow and JAX, tensors are copied. The options are those of `headwise.watch`; `gradients` needs PyTorch.

    Raises:
        DtypeError, ArgumentError: an invalid argument; the message names it.
    """
    if not isinstance(model, keras.layers.Layer):
        raise DtypeError(f"watch: expected a Keras model or layer. Received: {type(model).__name__}")
    backend = keras.backend.backend()
    if options.get("gradients") and backend != "torch":
        raise ArgumentError(
            "gradients: expected False, because only torch has hooks for gradients. Received: gradients=True "
            f"with Keras on {backend}. Use KERAS_BACKEND=torch"
        )
    return Watch(model, Keeping(**options), tokens, _watching)


@contextlib.contextmanager
def _watching(model: keras.layers.Layer, keeping: Keeping) -> Iterator[Watcher]:
    """Return a context inside which the attention of a Keras model is recorded. It yields the `Watcher`."""
    with contextlib.ExitStack() as stack:
        layers = Layers(model, stack.enter_context(eagerly(model)))
        watcher = Watcher(type(model).__name__, layers, keeping)
        reader = Reader(layers, watcher)

        def told(call: Call, out: Any) -> None:
            place = layers.here()
            if place is not None:
                with reader.trying("headwise.keras"):
                    found = call_to_torch(call), to_torch(out)
                    reader.seen(*found, lambda x: x, "headwise.keras", _output_kernel(place.module, call))

        @contextlib.contextmanager
        def before(call: Running) -> Iterator[None]:
            layers.began(id(call.layer))
            with read_layers(reader, call):
                yield

        # On torch, layers that are written with torch or with keras.ops are recorded too.
        stack.enter_context(following(watcher, functions=keras.backend.backend() == "torch"))
        stack.enter_context(read_operations(reader))
        stack.enter_context(listening(told))
        stack.enter_context(wrap_calls(before))
        yield watcher


def _output_kernel(layer: Any, call: Call) -> Any:
    """Return the output projection W_O [H, E, M]; None if there is none, or if a gate is before it."""
    kernel = getattr(getattr(layer, "out", None), "kernel", None)
    heads, width = call.q.shape[1], call.v.shape[3]
    if kernel is None or getattr(layer, "gate", None) is not None or kernel.shape[0] != heads * width:
        return None
    return to_torch(kernel).detach().reshape(heads, width, -1)
