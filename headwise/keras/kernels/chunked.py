"""A kernel that computes some queries at a time, and computes them again in backward: memory is linear in Q and in K.

Rabe & Staats 2021, "Self-attention Does Not Need O(n²) Memory", but with whole rows of keys.
"""

from __future__ import annotations

import contextlib
import dataclasses

import keras
from keras import ops
from keras.src.backend import AutocastScope  # it has no public name

from headwise.keras import masking
from headwise.keras.call import Call, Tensor, attend, runs_now

ROWS = 256  # the number of queries at a time: scores of 256 queries, 16k keys and 8 heads are 128 MiB


def run(call: Call) -> Tensor:
    """Compute the output [B, H, Q, E] of the call."""
    call = call.usable()
    q_len, k_len = ops.shape(call.q)[2], ops.shape(call.k)[2]
    size = ROWS if call.q.shape[2] is None else min(ROWS, max(1, call.q.shape[2]))
    count = (q_len + size - 1) // size
    steps = ops.arange(size, dtype="int32")

    # Tensors that need gradients are passed as arguments: TensorFlow's recomputation ignores variables of closures. It
    # would count the gradient of a variable twice, so variables are copied, in their own dtype.
    given = {name: x for name in ("bias", "sinks") if (x := getattr(call, name)) is not None and not callable(x)}
    learned = list(getattr(call.bias, "variables", ())) if callable(call.bias) else []
    with AutocastScope(None):
        handed = [ops.copy(x) for x in (*given.values(), *(variable.value for variable in learned))]

    def compute_rows(q: Tensor, index: Tensor, first: int = 0, end: Tensor = k_len) -> Tensor:
        """Compute the output for the queries of block `index`, using only the keys from `first` to before `end`."""
        seed = None if call.seed is None else call.seed + ops.cast(ops.stack([0, index + 1]), call.seed.dtype)
        cols = ops.arange(first, end, dtype="int32")

        def compute(q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> Tensor:
            here = dataclasses.replace(call, **dict(zip(given, more[: len(given)], strict=True)))
            values = list(zip(learned, more[len(given) :], strict=True))
            with keras.StatelessScope(state_mapping=values) if values else contextlib.nullcontext():
                rows = ops.minimum(index * size + steps[: q.shape[2]], q_len - 1)
                return attend(here, q, k, v, rows, cols, seed=seed)[0]

        return keras.remat(compute)(q, call.k[:, :, first:end], call.v[:, :, first:end], *handed)

    if runs_now(call.q):
        low, high = masking.reach(call.mask)
        outs = []
        for i in range(count):
            first, last = max(0, i * size + low), min(k_len - 1, (i + 1) * size - 1 + high)
            first, end = (0, k_len) if first > last else (int(first), int(last) + 1)
            outs.append(compute_rows(call.q[:, :, i * size : (i + 1) * size], i, first, end))
        return outs[0] if count == 1 else ops.concatenate(outs, axis=2)
    heads, head_dim = call.q.shape[1], call.q.shape[3]
    q = ops.pad(call.q, [(0, 0), (0, 0), (0, count * size - q_len), (0, 0)])
    q = ops.transpose(ops.reshape(q, (-1, heads, count, size, head_dim)), (2, 0, 1, 3, 4))
    found = ops.map(lambda x: compute_rows(*x), (q, ops.arange(count, dtype="int32")))
    found = ops.reshape(ops.transpose(found, (1, 2, 0, 3, 4)), (-1, heads, count * size, call.v.shape[3]))
    return found[:, :, :q_len]
