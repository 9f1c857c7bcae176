"""headwise's own CPU kernels (`headwise.native`): only what the mask allows, forward and backward, in one C++ pass.

FlashAttention-2 (Dao 2023) over blocks of 64 × 64. Half precision has float32 sums; float16 is computed in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.kernels.kernel import Cost, input_output_bytes, machine, matrix_flops, output_bytes
from headwise.native import attend
from headwise.native.library import instruction_set
from headwise.native.sight import sight_of
from headwise.softmax import finite, sinks_gradient

OPTIONS = frozenset({"bias", "softcap", "sinks", "dropout"})

# Shares of the nominal speed that large calls reach, where scaled_dot_product_attention reaches 0.95 with the same
# instruction set. `benchmarks/native.py` measures them.
FLOAT32 = {"portable": 0.3, "avx2": 0.8, "avx512": 1.0, "avx512bf16": 1.0, "amx": 1.0}
HALF = {"portable": 0.3, "avx2": 0.8, "avx512": 1.0, "avx512bf16": 1.4, "amx": 1.4}

ROWS = 16  # that are multiplied together, at least
PIECE = 1024  # rows of a piece of work; PIECE in src/tile.hpp


def refuse(call: AttentionCall) -> str | None:
    """What the native kernels cannot do, and a graph of torch.compile."""
    if torch.compiler.is_compiling():
        return "torch.compile cannot follow it"
    return attend.refuse(call)


def cost(call: AttentionCall) -> Cost:
    """That of the cells of the blocks, in rows of tiles; and of packing keys and values for each piece of work."""
    batch, heads, q_len, k_len = call.shape
    rows = -(-q_len // ROWS) * ROWS / q_len
    flops = int(matrix_flops(call, batch * heads * sight_of(call.mask, q_len, k_len).cells) * rows)
    pieces = -(-q_len * call.heads_per_key_head // PIECE)
    moved = input_output_bytes(call) + 2 * pieces * (call.k.numel() + call.v.numel()) * call.q.element_size()
    share = (FLOAT32 if call.q.dtype == torch.float32 else HALF)[instruction_set() or "portable"]
    return Cost(flops, moved, output_bytes(call), machine(call).time(flops, moved, share=share))


def run(call: AttentionCall) -> Tensor:
    """The output."""
    seed = int(torch.randint(2**62, ())) if call.dropout else 0
    if call.trains:
        out: Tensor = _Native.apply(call.q, call.k, call.v, call.bias, call.sinks, call, seed)
        return out
    out = _empty(call)
    attend.forward(call, out, seed=seed)
    return out


def _empty(call: AttentionCall) -> Tensor:
    return call.q.new_empty((*call.q.shape[:3], call.v.shape[-1]))


class _Native(torch.autograd.Function):
    """Ties the native backward to autograd."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        sinks: Tensor | None,
        call: AttentionCall,
        seed: int,
    ) -> Tensor:
        out = _empty(call)
        highest, log_sum = (q.new_empty(q.shape[:3], dtype=torch.float32) for _ in range(2))
        attend.forward(call, out, seed=seed, highest=highest, log_sum=log_sum)
        ctx.save_for_backward(q, k, v, bias, sinks, out, highest, log_sum)
        ctx.rest = {"mask": call.mask, "scale": call.scale, "softcap": call.softcap, "dropout": call.dropout}
        ctx.seed = seed
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, sinks, *found = ctx.saved_tensors
        call = AttentionCall(q, k, v=v, bias=bias, sinks=sinks, **ctx.rest)
        d_bias = None
        if bias is not None and ctx.needs_input_grad[3]:
            dq, dk, dv, d_bias = _with_bias(call, *found, d_out, ctx.seed)
        else:
            dq, dk, dv = attend.backward(call, *found, d_out, seed=ctx.seed)
        d_sinks = None
        if sinks is not None and ctx.needs_input_grad[4]:
            out, highest, log_sum = found
            share = torch.exp((sinks.float()[None, :, None] - highest) - finite(log_sum))
            d_sinks = sinks_gradient(share, out, d_out).to(sinks.dtype)
        return dq, dk, dv, d_bias, d_sinks, None, None


def _with_bias(
    call: AttentionCall, out: Tensor, highest: Tensor, log_sum: Tensor, d_out: Tensor, seed: int
) -> tuple[Tensor, ...]:
    """The gradients of q, k, v and the bias, in its shape."""
    assert call.bias is not None
    d_bias = torch.zeros(call.shape, dtype=torch.float32)
    found = attend.backward(call, out, highest, log_sum, d_out, seed=seed, d_bias=d_bias)
    return *found, d_bias.sum_to_size(call.bias.shape).to(call.bias.dtype)
