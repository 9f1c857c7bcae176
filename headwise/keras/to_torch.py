"""Converts tensors, masks and calls of the backend to torch, for attention records."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import torch
from keras import ops

from headwise import masks
from headwise.call import AttentionCall, make_call
from headwise.errors import RecordError
from headwise.keras.call import Call
from headwise.keras.masking import find_tensor
from headwise.masks import Mask
from headwise.masks.mask import And

# A tensor mask with more elements is not examined for a simpler mask (causal …): this would take longer than the call.
LOOKED_AT = 2**24


class Symbolic(RecordError):  # noqa: N818 (an answer, not a failure)
    """Raised for a tensor that has no values, because a compiled function is being traced."""

    def __init__(self) -> None:
        super().__init__(
            "it ran inside a compiled function (tf.function, jax.jit, torch.compile), whose tensors have no values "
            "during tracing. Call the model itself, or compile with run_eagerly=True"
        )


def to_torch(x: Any) -> torch.Tensor:
    """Convert a backend tensor or an array to torch, usually as a copy. Raises Symbolic if it has no values."""
    if isinstance(x, torch.Tensor):
        if x.is_meta or type(x).__name__ == "FakeTensor":
            raise Symbolic
        return x
    values = np.asarray(ops.convert_to_numpy(_concrete(x)))
    if values.dtype.name == "bfloat16":  # NumPy itself does not know bfloat16
        return torch.tensor(values.view(np.int16)).view(torch.bfloat16)
    return torch.tensor(values)


def _concrete(x: Any) -> Any:
    """Return a tensor that has values, or raise Symbolic. Tensors in jax.grad have values, those in jax.jit not."""
    if isinstance(x, keras.Variable):
        x = x.value
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        if tf.is_tensor(x) and tf.is_symbolic_tensor(x):
            raise Symbolic
    if backend == "jax":
        import jax

        while isinstance(x, jax.core.Tracer):
            x = getattr(x, "primal", None)
        if x is None:
            raise Symbolic
    return x


def mask_to_torch(mask: Mask, q_len: int) -> Mask | None:
    """Convert a mask of `masking.resolve`; a small tensor may become a simpler mask. None if it forbids nothing."""
    if isinstance(mask, And):
        parts = [part for part in (mask_to_torch(part, q_len) for part in mask.parts) if part is not None]
        return And(tuple(parts)) if len(parts) > 1 else parts[0] if parts else None
    given = find_tensor(mask)
    return mask if given is None else dense_mask(to_torch(given).bool(), q_len)


def dense_mask(allowed: torch.Tensor, q_len: int) -> Mask | None:
    """Convert a bool tensor [B|1, H|1, Q|1, K] (True = may attend) to a simple mask; None if all are True."""
    batch, heads, rows, _ = allowed.shape
    if rows == heads == 1 and q_len > 1:  # the same for every query: padding, even if a single row looks different
        return None if bool(allowed.all()) else masks.padding(allowed[:, 0, 0].clone())
    allowed = allowed.expand(batch, heads, q_len, -1)
    return masks.recognise(allowed) if allowed.numel() <= LOOKED_AT else masks.from_tensor(allowed)


def call_to_torch(call: Call) -> AttentionCall:
    """Convert a `Call` to an `AttentionCall` of torch tensors. Raises Symbolic if its tensors have no values."""
    q, k, v = (to_torch(x) for x in (call.q, call.k, call.v))
    bias = call.bias
    if callable(bias):
        rows, cols = (ops.arange(x.shape[2], dtype="int32") for x in (q, k))
        bias = bias(call.q, rows, cols, whole=True)
    return make_call(
        *(q, k, v),
        mask=None if call.mask is None else mask_to_torch(call.mask, q.shape[2]),
        bias=None if bias is None else to_torch(bias),
        scale=call.scale,
        softcap=call.softcap,
        sinks=None if call.sinks is None else to_torch(call.sinks),
        dropout=call.dropout,
    )
