"""headwise's own CPU kernels (`headwise.native`): only what the mask allows, forward and backward, in one C++ pass.

FlashAttention-2 (Dao 2023) over blocks of 64 × 64. Half precision has float32 sums; float16 is computed in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.kernels.kernel import Cost, input_output_bytes, machine, matrix_flops, output_bytes
from headwise.native.attend import DTYPES, backward, forward
from headwise.native.library import library
from headwise.native.sight import sight_of
from headwise.softmax import finite, sinks_gradient

OPTIONS = frozenset({"bias", "softcap", "sinks"})


def refuse(call: AttentionCall) -> str | None:
    """Other devices and dtypes, a gradient of the bias, and machines where it was not compiled."""
    if call.q.device.type != "cpu":
        return f"it runs on the CPU (the call is on {call.q.device})"
    if torch.compiler.is_compiling():
        return "torch.compile cannot follow it"
    if call.q.dtype not in DTYPES:
        return f"it has no {str(call.q.dtype).removeprefix('torch.')}"
    if call.bias is not None and call.bias.requires_grad and call.trains:
        return "it gives no gradient to the bias"
    if 0 in call.shape or 0 in (call.q.shape[3], call.v.shape[3]):
        return "there are no queries or no keys"
    if library() is None:
        return "the native kernels were not compiled, or HEADWISE_NATIVE is off"
    return None


def cost(call: AttentionCall) -> Cost:
    """That of the cells of the blocks."""
    batch, heads, q_len, k_len = call.shape
    cells = batch * heads * sight_of(call.mask, q_len, k_len).cells
    flops = matrix_flops(call, cells)
    moved = input_output_bytes(call)
    return Cost(flops, moved, output_bytes(call), machine(call).time(flops, moved, share=0.95))


def run(call: AttentionCall) -> Tensor:
    """The output."""
    if call.trains:
        out: Tensor = _Native.apply(call.q, call.k, call.v, call.sinks, call)
        return out
    out = _empty(call)
    forward(call, out)
    return out


def _empty(call: AttentionCall) -> Tensor:
    return call.q.new_empty((*call.q.shape[:3], call.v.shape[-1]))


class _Native(torch.autograd.Function):
    """Ties the native backward to autograd."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, call: AttentionCall) -> Tensor:
        out = _empty(call)
        highest, log_sum = (q.new_empty(q.shape[:3], dtype=torch.float32) for _ in range(2))
        forward(call, out, highest=highest, log_sum=log_sum)
        ctx.save_for_backward(q, k, v, sinks, out, highest, log_sum)
        ctx.call = call
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        *_, sinks, out, highest, log_sum = ctx.saved_tensors
        dq, dk, dv = backward(ctx.call, out, highest, log_sum, d_out)
        d_sinks = None
        if sinks is not None and ctx.needs_input_grad[3]:
            share = torch.exp((sinks.float()[None, :, None] - highest) - finite(log_sum))
            d_sinks = sinks_gradient(share, out, d_out).to(sinks.dtype)
        return dq, dk, dv, d_sinks, None
