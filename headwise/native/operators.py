"""The native kernels as operators of torch: `headwise::attend`, which torch.compile and torch.export keep in a graph.

Eager calls do not use these operators, which would take longer than a small call. A mask is given as the two limits of
a band, or as bool [B|1, H|1, Q, K], True = may attend. Programs with an operator run where headwise has been imported.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.masks import Mask
from headwise.masks.band import Band
from headwise.masks.cellwise import Dense
from headwise.native import attend as kernels

NO_LIMIT = 2**40  # the limit of a band without a limit


def attend(call: AttentionCall) -> Tensor:
    """Compute the output [B, H, Q, E] of a call, by one operator."""
    low, high, allowed = -NO_LIMIT, NO_LIMIT, None
    if call.mask is not None:
        band = call.mask.band()
        if band is None:
            q, k = (torch.arange(n, device=call.q.device) for n in call.shape[2:])
            allowed = call.mask.cells(q, k)
        else:  # an infinite limit is a float, any other an integer
            low, high = (far if isinstance(x, float) else x for x, far in zip(band, (low, high), strict=True))
    seed = torch.randint(2**62, (), device="cpu") if call.dropout else None
    tensors = (call.q, call.k, call.v, allowed, call.bias, call.slopes, call.sinks, seed)
    out: Tensor = _attend(*tensors, low, high, call.scale, call.softcap or 0.0, call.dropout)[0]
    return out


INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? allowed, Tensor? bias, Tensor? slopes, Tensor? sinks, Tensor? seed, "
    "SymInt low, SymInt high, float scale, float softcap, float dropout"
)
_operator = functools.partial(torch.library.custom_op, mutates_args=(), device_types="cpu")


@_operator("headwise::attend", schema=f"({INPUTS}) -> (Tensor, Tensor, Tensor)")
def _attend(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Compute (output [B, H, Q, E], highest, log_sum); the last two, float32 [B, H, Q], are for the backward."""
    (call, seed), (out, highest, log_sum) = _call(*inputs), _like(*inputs)
    kernels.forward(call, out, seed=seed, highest=highest, log_sum=log_sum)
    return out, highest, log_sum


@_attend.register_fake
def _like(q: Tensor, k: Tensor, v: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    rows = q.shape[:3]
    highest, log_sum = (q.new_empty(rows, dtype=torch.float32) for _ in range(2))
    return q.new_empty((*rows, v.shape[3])), highest, log_sum


@_operator(
    "headwise::attend_backward",
    schema=f"(Tensor d_out, Tensor out, Tensor highest, Tensor log_sum, {INPUTS}, bool with_bias, bool with_slopes, "
    "bool with_sinks) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _attend_backward(d_out: Tensor, out: Tensor, highest: Tensor, log_sum: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Compute the gradients of q, k, v, bias, slopes and sinks: an empty tensor for one that is not requested."""
    *inputs, with_bias, with_slopes, with_sinks = rest
    call, seed = _call(*inputs)
    asked = {"with_bias": with_bias, "with_slopes": with_slopes, "with_sinks": with_sinks}
    found = kernels.backward(call, out, highest, log_sum, d_out, seed=seed, **asked)
    return tuple(call.q.new_empty(0) if x is None else x for x in found)


@_attend_backward.register_fake
def _(d_out: Tensor, out: Tensor, highest: Tensor, log_sum: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    q, k, v, _, *options = rest
    asked = zip(options[:3], rest[-3:], strict=True)
    return tuple(x.new_empty(x.shape) for x in (q, k, v, *(x if wanted else q.new_empty(0) for x, wanted in asked)))


def _setup(ctx: torch.autograd.function.FunctionCtx, inputs: tuple, output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:8], *output)
    ctx.numbers = inputs[8:]  # type: ignore[attr-defined]
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx, d_out: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
    *inputs, out, highest, log_sum = ctx.saved_tensors
    asked = ctx.needs_input_grad[4:7]
    dq, dk, dv, *more = _attend_backward(d_out, out, highest, log_sum, *inputs, *ctx.numbers, *asked)
    more = [x if wanted else None for x, wanted in zip(more, asked, strict=True)]
    return dq, dk, dv, None, *more, *[None] * 6


_attend.register_autograd(_backward, setup_context=_setup)


def _call(*inputs: Any) -> tuple[AttentionCall, int]:
    """Return (the call that has these inputs, the seed of its dropout)."""
    q, k, v, allowed, bias, slopes, sinks, seed, low, high, scale, softcap, dropout = inputs
    mask: Mask | None = None
    if allowed is not None:
        mask = Dense(allowed)
    elif high < NO_LIMIT:
        mask = Band(None if low <= -NO_LIMIT else high - low, 0, high)
    elif low > -NO_LIMIT:
        mask = Band(0, None, low)
    options: dict[str, Any] = {"bias": bias, "slopes": slopes, "sinks": sinks, "scale": scale, "dropout": dropout}
    call = AttentionCall(q, k, v=v, mask=mask, softcap=softcap or None, **options)
    return call, 0 if seed is None else int(seed)
