"""A call by the native kernels: forward, statistics and gradients. Only this module knows the layout of the header."""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor

from headwise.call import AttentionCall, Scores
from headwise.errors import ArgumentError
from headwise.native.library import library
from headwise.native.sight import Sight, sight_of

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # as in headwise.h

# hw_attention: every field has 8 bytes.
_TENSOR = "Q4q"
_LAYOUT = struct.Struct("=" + "10q" + 4 * _TENSOR + "2d" + "Q" + _TENSOR + "3q" + "Q2q" + "3Q3q" + "5Q" + 4 * _TENSOR)
_NONE = (0, 0, 0, 0, 0)


def forward(call: Scores, out: Tensor | None, **answers: Tensor) -> bool:
    """Compute a call. Returns whether all its outputs are finite.

    Args:
        call: with values, if there is an `out`; on the CPU, in a dtype of `DTYPES`.
        out: [B, H, Q, E], written; None = only the answers.
        answers: float32 [B, H, Q], contiguous, written: highest, log_sum, entropy, distance. See headwise.h.
    """
    odd = torch.zeros(1, dtype=torch.int64)
    _call("hw_attention_forward", call, out, {**answers, "odd": odd})
    return not odd.item()


def backward(
    call: AttentionCall, out: Tensor, highest: Tensor, log_sum: Tensor, d_out: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v, from what `forward` wrote and the gradient of the output."""
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype) for x in (call.q, call.k, call.v))
    _call("hw_attention_backward", call, out, {"highest": highest, "log_sum": log_sum}, d_out, dq, dk, dv)
    return dq, dk, dv


def _call(function: str, call: Scores, out: Tensor | None, answers: dict[str, Tensor], *gradients: Tensor) -> None:
    loaded = library()
    assert loaded is not None
    (batch, heads, q_len, k_len), (key_heads, width) = call.shape, (call.k.shape[1], call.q.shape[3])
    v = getattr(call, "v", None)
    bias = None if call.bias is None else call.bias.float().expand(batch, heads, q_len, k_len)
    sinks = None if call.sinks is None else call.sinks.float().contiguous()
    sight = sight_of(call.mask, q_len, k_len)  # held until the call is over, as all that it points to
    given = _LAYOUT.pack(
        *(_LAYOUT.size, DTYPES[call.q.dtype], torch.get_num_threads()),
        *(batch, heads, key_heads, q_len, k_len, width, width if v is None else v.shape[3]),
        *(number for x in (call.q, call.k, v, out) for number in _tensor(x)),
        *(call.scale, call.softcap or 0.0, 0 if sinks is None else sinks.data_ptr()),
        *_tensor(bias),
        *_mask(sight),
        *(x.data_ptr() if (x := answers.get(name)) is not None else 0 for name in _ANSWERS),
        *(number for x in (gradients or (None,) * 4) for number in _tensor(x)),
    )
    code = getattr(loaded, function)(given)
    if code:
        raise ArgumentError(f"{function}: {loaded.hw_error(code).decode()}")


_ANSWERS = ("highest", "log_sum", "entropy", "distance", "odd")


def _tensor(x: Tensor | None) -> tuple[int, ...]:
    return _NONE if x is None else (x.data_ptr(), *x.stride())


def _mask(sight: Sight) -> tuple[Any, ...]:
    found = sight.blocks
    if found is None:
        return (sight.kind, sight.low, sight.high, *(0,) * 9)
    batch, heads = found.matrix.shape
    strides = (heads if batch > 1 else 0, 1 if heads > 1 else 0)
    arrays = (found.tiles.ctypes.data, found.blocks.ctypes.data, found.words.ctypes.data)
    counts = (len(found.tiles) - 1, len(found.blocks), found.words.size)
    return (sight.kind, 0, 0, found.matrix.ctypes.data, *strides, *arrays, *counts)
