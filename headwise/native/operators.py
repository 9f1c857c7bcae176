"""The native kernels as operators of torch: `headwise::attend`, which torch.compile and torch.export keep in a graph.

Eager calls do not go through them: that would take longer than a small call. A mask is a band, by its two limits, or
any other as bool [B|1, H|1, Q, K]. Programs that hold an operator run where headwise has been imported.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.masks import Mask
from headwise.masks.band import Band
from headwise.masks.cellwise import Dense
from headwise.native import attend as kernels

NO_LIMIT = 2**40  # of a band


def attend(call: AttentionCall) -> Tensor:
    """The output of a call [B, H, Q, E], by one operator."""
    low, high, allowed = -NO_LIMIT, NO_LIMIT, None
    if call.mask is not None:
        band = call.mask.band()
        if band is None:
            q, k = (torch.arange(n, device=call.q.device) for n in call.shape[2:])
            allowed = call.mask.cells(q, k)
        else:  # an infinite limit is a float, any other an integer
            low, high = (far if isinstance(x, float) else x for x, far in zip(band, (low, high), strict=True))
    seed = torch.randint(2**62, ()) if call.dropout else None
    tensors = (call.q, call.k, call.v, allowed, call.bias, call.sinks, seed)
    out: Tensor = _attend(*tensors, low, high, call.scale, call.softcap or 0.0, call.dropout)[0]
    return out


@torch.library.custom_op("headwise::attend", mutates_args=(), device_types="cpu")
def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    allowed: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    seed: Tensor | None,
    low: int,
    high: int,
    scale: float,
    softcap: float,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output [B, H, Q, E], and float32 highest and log_sum [B, H, Q] for the gradients."""
    call = _call(q, k, v, allowed, bias, sinks, low, high, scale, softcap, dropout)
    out, highest, log_sum = _like(q, v)
    kernels.forward(call, out, seed=_number(seed), highest=highest, log_sum=log_sum)
    return out, highest, log_sum


@_attend.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: object) -> tuple[Tensor, Tensor, Tensor]:
    return _like(q, v)


@torch.library.custom_op("headwise::attend_backward", mutates_args=(), device_types="cpu")
def _attend_backward(
    d_out: Tensor,
    out: Tensor,
    highest: Tensor,
    log_sum: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    allowed: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    seed: Tensor | None,
    low: int,
    high: int,
    scale: float,
    softcap: float,
    dropout: float,
    with_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k and v, and that of the bias, of no size where it is not asked for."""
    call = _call(q, k, v, allowed, bias, sinks, low, high, scale, softcap, dropout)
    found = (out, highest, log_sum, d_out)
    dq, dk, dv, d_bias = kernels.backward(call, *found, seed=_number(seed), with_bias=with_bias)
    return dq, dk, dv, q.new_empty(0) if d_bias is None else d_bias


@_attend_backward.register_fake
def _(
    d_out: Tensor, out: Tensor, highest: Tensor, log_sum: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: object
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    bias, with_bias = rest[1], rest[-1]
    like = bias if with_bias and isinstance(bias, Tensor) else q.new_empty(0)
    dq, dk, dv, d_bias = (x.new_empty(x.shape) for x in (q, k, v, like))
    return dq, dk, dv, d_bias


def _setup(ctx: torch.autograd.function.FunctionCtx, inputs: tuple, output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:7], *output)
    ctx.numbers = inputs[7:]  # type: ignore[attr-defined]
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx, d_out: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
    *inputs, out, highest, log_sum = ctx.saved_tensors
    bias, sinks = inputs[4:6]
    with_bias = bias is not None and ctx.needs_input_grad[4]
    *found, d_bias = _attend_backward(d_out, out, highest, log_sum, *inputs, *ctx.numbers, with_bias)
    d_sinks = None
    if sinks is not None and ctx.needs_input_grad[5]:
        d_sinks = kernels.gradient_of_sinks(sinks, out, highest, log_sum, d_out)
    return *found, None, d_bias if with_bias else None, d_sinks, *[None] * 6


_attend.register_autograd(_backward, setup_context=_setup)


def _call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    allowed: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    low: int,
    high: int,
    scale: float,
    softcap: float,
    dropout: float,
) -> AttentionCall:
    mask: Mask | None = None
    if allowed is not None:
        mask = Dense(allowed)
    elif high < NO_LIMIT:
        mask = Band(None if low <= -NO_LIMIT else high - low, 0, high)
    elif low > -NO_LIMIT:
        mask = Band(0, None, low)
    return AttentionCall(
        q, k, v=v, mask=mask, bias=bias, sinks=sinks, scale=scale, softcap=softcap or None, dropout=dropout
    )


def _like(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows = q.shape[:3]
    highest, log_sum = (q.new_empty(rows, dtype=torch.float32) for _ in range(2))
    return q.new_empty((*rows, v.shape[3])), highest, log_sum


def _number(seed: Tensor | None) -> int:
    return 0 if seed is None else int(seed)
