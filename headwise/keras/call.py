"""One attention computation with Keras tensors, for all rows or some rows of queries.

    s = scale · q kᵀ;   s = softcap · tanh(s / softcap);   s += bias;   s = -∞ where the mask forbids
    A = exp(s - lse),   lse = log(Σ exp(s) + exp(sink))

This is the computation of `headwise.call`, which is for torch tensors. The scores become float32, or float64, before
anything is added to them and before the softmax, whatever the dtype of the queries.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import torch
from keras import ops

from headwise.keras import masking
from headwise.masks import Mask

Tensor = Any  # a tensor of the backend (TensorFlow, JAX or PyTorch)
Bias = Callable[..., Tensor]  # (q of the rows, rows, cols, whole=) -> float [B|1, H, r, c]; see `attend`


@dataclasses.dataclass(frozen=True, eq=False)
class Call:
    """The arguments of one attention computation: q [B, H, Q, D], k [B, G, K, D], v [B, G, K, E] and all options."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask | None  # made by `masking.resolve`: aligned to Q and K, with tensors of the backend
    bias: Tensor | Bias | None  # a float tensor that broadcasts to [B, H, Q, K], or a function of rows and columns
    scale: float
    softcap: float | None
    sinks: Tensor | None  # [H]
    dropout: float
    seed: Tensor | None  # [2] integers; None without dropout

    @property
    def lengths(self) -> tuple[int | None, int | None]:
        """The lengths Q and K; None = unknown before the call."""
        return self.q.shape[2], self.k.shape[2]

    def usable(self) -> Call:
        """Return this call with 0 in keys and values that no query may attend to, so that NaN in them cannot spread."""
        if self.mask is None or masking.sees_all(self.mask, *self.lengths):
            return self
        used = masking.used_keys(self.mask, *self.lengths)
        if used is None:
            return self
        groups, heads = self.k.shape[1], used.shape[1]
        if heads not in (None, 1, groups):
            used = ops.any(ops.reshape(used, (-1, groups, heads // groups, ops.shape(used)[2])), axis=2)
        used = ops.expand_dims(used, -1)
        k, v = (ops.where(used, x, ops.zeros((), dtype=x.dtype)) for x in (self.k, self.v))
        return dataclasses.replace(self, k=k, v=v)

    @property
    def float(self) -> str:
        """The name of the dtype of the scores."""
        return precision(self.q)


def precision(x: Tensor) -> str:
    """Return the dtype of scores and of tensors added to them: "float64" if x is float64, else "float32"."""
    return "float64" if keras.backend.standardize_dtype(x.dtype) == "float64" else "float32"


def attend(
    call: Call,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: Tensor | None = None,
    cols: Tensor | None = None,
    *,
    valid: Tensor | None = None,
    seed: Tensor | None = None,
    weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention of some rows (queries) to some columns (keys and values) of a call.

    Returns the output [B, H, …, r, E], and the weights [B, H, …, r, c] before dropout (None unless `weights`). In the
    shapes, … is nothing, or n blocks that are computed side by side.

    Args:
        call: the call, for its mask and options.
        q, k, v: the chosen queries [B, H, …, r, D], keys [B, G, …, c, D] and values [B, G, …, c, E].
        rows, cols: the positions of q […, r] and of k and v […, c] in the call; None = all.
        valid: bool […, c], True = this column exists; False = it only fills a block.
        seed: the seed of dropout; None = the call's seed.
        weights: whether to return the weights.
    """
    whole = rows is None
    if rows is None and (call.mask is not None or callable(call.bias)):
        rows, cols = (ops.arange(ops.shape(x)[2], dtype="int32") for x in (q, k))
    scores = ops.cast(products(q * ops.cast(call.scale, q.dtype), k), call.float)
    if call.softcap is not None:
        scores = call.softcap * ops.tanh(scores / call.softcap)
    allowed = None if call.mask is None else masking.cells(call.mask, rows, cols, whole=whole)
    empty_rows = allowed is not None and not masking.never_empty(call.mask, *call.lengths)
    if valid is not None:
        known = ops.expand_dims(valid, -2)[None, None]
        allowed = known if allowed is None else ops.logical_and(allowed, known)
    if callable(call.bias):
        scores = scores + ops.cast(call.bias(q, rows, cols, whole=whole), call.float)
    elif call.bias is not None:
        bias = call.bias[(None,) * (4 - len(call.bias.shape))]
        bias = ops.cast(bias if whole else masking.picked(bias, rows, cols), call.float)
        seen = bias > -float("inf")  # a bias of -inf forbids the pair, without making NaN
        allowed, empty_rows = (seen if allowed is None else ops.logical_and(allowed, seen)), True
        scores = scores + ops.where(seen, bias, 0.0)
    found = _softmax(scores, allowed, call.sinks)
    used = ops.cast(found, v.dtype)
    if call.dropout:
        used = keras.random.dropout(used, call.dropout, seed=_Drawn(call.seed if seed is None else seed))
    out = products_with(used, v)
    if empty_rows:  # the softmax gives an empty row equal weights; here they become 0
        some = ops.any(allowed, axis=-1, keepdims=True)
        out = ops.where(some, out, ops.cast(0.0, out.dtype))
        found = ops.where(some, found, ops.cast(0.0, found.dtype)) if weights else found
    return out, found if weights else None


def products(q: Tensor, k: Tensor) -> Tensor:
    """Compute q kᵀ [B, H, …, r, c] of q [B, H, …, r, D], k [B, G, …, c, D]; H / G heads in a row share a key head."""
    heads, groups = q.shape[1], k.shape[1]
    if heads == groups:
        return ops.einsum("...qd,...kd->...qk", q, k)
    split = ops.reshape(q, (-1, groups, heads // groups, *ops.shape(q)[2:]))
    found = ops.einsum("bgn...qd,bg...kd->bgn...qk", split, k)
    return ops.reshape(found, (-1, heads, *ops.shape(found)[3:]))


def products_with(weights: Tensor, v: Tensor) -> Tensor:
    """Compute A v [B, H, …, r, E] from the weights A [B, H, …, r, c] and v [B, G, …, c, E]."""
    heads, groups = weights.shape[1], v.shape[1]
    if heads == groups:
        return ops.matmul(weights, v)
    split = ops.reshape(weights, (-1, groups, heads // groups, *ops.shape(weights)[2:]))
    found = ops.einsum("bgn...qk,bg...ke->bgn...qe", split, v)
    return ops.reshape(found, (-1, heads, *ops.shape(found)[3:]))


def _softmax(scores: Tensor, allowed: Tensor | None, sinks: Tensor | None) -> Tensor:
    """Compute the softmax exp(s - lse) of rows. Forbidden pairs get exactly 0, except in a row without any key."""
    if allowed is not None:
        lowest = np.finfo(keras.backend.standardize_dtype(scores.dtype)).min
        scores = ops.where(allowed, scores, ops.cast(lowest, scores.dtype))
    if sinks is not None:
        sink = ops.reshape(ops.cast(sinks, scores.dtype), (-1,) + (1,) * (len(scores.shape) - 2))
        highest = ops.stop_gradient(ops.maximum(ops.max(scores, axis=-1, keepdims=True), sink))
        weights = ops.exp(scores - highest)
        return weights / (ops.sum(weights, axis=-1, keepdims=True) + ops.exp(sink - highest))
    if scores.shape[-1] == 1:  # for a single key ops.softmax would warn that the result is always 1
        return ops.ones_like(scores)
    return ops.softmax(scores, axis=-1)


class _Drawn(keras.random.SeedGenerator):
    """A seed generator that returns the same seed each time, so that a recomputation draws the same random numbers."""

    _initial_seed = 0  # not None, otherwise Keras uses PyTorch's own seed

    def __init__(self, seed: Tensor) -> None:
        self._seed = seed

    def next(self, ordered: bool = True) -> Tensor:
        return self._seed


def runs_now(x: Tensor) -> bool:
    """Return whether operations on x run eagerly (at once), and are not traced for compilation."""
    match keras.backend.backend():
        case "tensorflow":
            import tensorflow as tf

            return not tf.is_symbolic_tensor(x)
        case "jax":
            import jax

            return not isinstance(x, jax.core.Tracer)
        case _:
            return not torch.compiler.is_compiling()
