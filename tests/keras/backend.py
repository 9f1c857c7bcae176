"""What the tests of one backend share: its name, tensors there and back, and gradients."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

BACKEND = os.environ["KERAS_BACKEND"]
assert keras.backend.backend() == BACKEND

if BACKEND == "jax":
    import jax

    jax.config.update("jax_disable_most_optimizations", True)  # compiling is most of the time of these tests


def cases(names: Iterable[Any], *everywhere: Any) -> list[Any]:
    """The parameters of a test, of which those `everywhere` run on every backend."""
    known = list(names)
    assert set(everywhere) <= set(known)
    return [pytest.param(each, marks=pytest.mark.every_backend if each in everywhere else ()) for each in known]


def tensor(x: Any) -> Any:
    """A NumPy array, or a torch tensor, as a tensor of the backend; float64 becomes float32."""
    x = np.asarray(x)
    return ops.convert_to_tensor(x.astype(np.float32) if x.dtype == np.float64 else x)


def array(x: Any) -> np.ndarray:
    """A tensor of the backend as a NumPy array."""
    return np.asarray(ops.convert_to_numpy(x))


def compiled(f: Callable[..., Any]) -> Callable[..., Any]:
    """f as one program on JAX, where op by op each small operation is compiled by itself; f itself elsewhere."""
    return jax.jit(f) if BACKEND == "jax" else f


def gradients(f: Callable[..., Any], *tensors: Any) -> list[np.ndarray]:
    """The gradients of the scalar f(*tensors) by each of the tensors; on JAX compiled, which is quicker."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(tensors)
            loss = f(*tensors)
        found = tape.gradient(loss, tensors, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return [array(tf.convert_to_tensor(g)) for g in found]
    if BACKEND == "jax":
        return [array(g) for g in jax.jit(jax.grad(f, argnums=tuple(range(len(tensors)))))(*tensors)]
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    f(*leaves).backward()
    return [np.zeros(tuple(x.shape), np.float32) if x.grad is None else array(x.grad) for x in leaves]


def weight_gradients(f: Callable[[], Any], layer: keras.layers.Layer) -> dict[str, np.ndarray]:
    """The gradients of the scalar f() by the trainable weights of a built layer, by their paths within it."""
    weights = layer.trainable_variables
    paths = [weight.path.partition("/")[2] for weight in weights]
    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = f()
        found = tape.gradient(loss, [w.value for w in weights], unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return dict(zip(paths, (array(tf.convert_to_tensor(g)) for g in found), strict=True))
    if BACKEND == "jax":

        def loss_of(values: list[Any]) -> Any:
            with keras.StatelessScope(state_mapping=list(zip(weights, values, strict=True))):
                return f()

        return dict(zip(paths, map(array, jax.jit(jax.grad(loss_of))([w.value for w in weights])), strict=True))
    for weight in weights:
        weight.value.grad = None
    f().backward()
    zeros = [np.zeros(tuple(w.shape), np.float32) if w.value.grad is None else array(w.value.grad) for w in weights]
    return dict(zip(paths, zeros, strict=True))
