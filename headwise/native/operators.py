"""The native kernels as operators of torch: `headwise::attend`, which torch.compile and torch.export keep in a graph.

Eager calls do not go through them: that would take longer than a small call. A mask is a band, by its two limits, or
any other as bool [B|1, H|1, Q, K]. Programs that hold an operator run where headwise has been imported.
"""

from __future__ import annotations

from typing import Any

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
    seed = torch.randint(2**62, (), device="cpu") if call.dropout else None
    tensors = (call.q, call.k, call.v, allowed, call.bias, call.slopes, call.sinks, seed)
    out: Tensor = _attend(*tensors, low, high, call.scale, call.softcap or 0.0, call.dropout)[0]
    return out


@torch.library.custom_op("headwise::attend", mutates_args=(), device_types="cpu")
def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    allowed: Tensor | None,
    bias: Tensor | None,
    slopes: Tensor | None,
    sinks: Tensor | None,
    seed: Tensor | None,
    low: int,
    high: int,
    scale: float,
    softcap: float,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output [B, H, Q, E], and float32 highest and log_sum [B, H, Q] for the gradients."""
    call = _call(q, k, v, allowed, bias, slopes, sinks, low, high, scale, softcap, dropout)
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
    slopes: Tensor | None,
    sinks: Tensor | None,
    seed: Tensor | None,
    low: int,
    high: int,
    scale: float,
    softcap: float,
    dropout: float,
    with_bias: bool,
    with_slopes: bool,
    with_sinks: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k and v, and those of bias, slopes and sinks, of no size where they are not asked for."""
    call = _call(q, k, v, allowed, bias, slopes, sinks, low, high, scale, softcap, dropout)
    found = (out, highest, log_sum, d_out)
    asked: dict[str, Any] = {"with_bias": with_bias, "with_slopes": with_slopes, "with_sinks": with_sinks}
    dq, dk, dv, *more = kernels.backward(call, *found, seed=_number(seed), **asked)
    d_bias, d_slopes, d_sinks = (q.new_empty(0) if x is None else x for x in more)
    return dq, dk, dv, d_bias, d_slopes, d_sinks


@_attend_backward.register_fake
def _(
    d_out: Tensor, out: Tensor, highest: Tensor, log_sum: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: object
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    asked = zip(rest[1:4], rest[-3:], strict=True)
    likes = [x if wanted and isinstance(x, Tensor) else q.new_empty(0) for x, wanted in asked]
    dq, dk, dv, d_bias, d_slopes, d_sinks = (x.new_empty(x.shape) for x in (q, k, v, *likes))
    return dq, dk, dv, d_bias, d_slopes, d_sinks


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


def _call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    allowed: Tensor | None,
    bias: Tensor | None,
    slopes: Tensor | None,
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
    options: dict[str, Any] = {"bias": bias, "slopes": slopes, "sinks": sinks, "scale": scale, "dropout": dropout}
    return AttentionCall(q, k, v=v, mask=mask, softcap=softcap or None, **options)


def _like(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows = q.shape[:3]
    highest, log_sum = (q.new_empty(rows, dtype=torch.float32) for _ in range(2))
    return q.new_empty((*rows, v.shape[3])), highest, log_sum


def _number(seed: Tensor | None) -> int:
    return 0 if seed is None else int(seed)
