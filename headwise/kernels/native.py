"""headwise's own CPU kernels (`headwise.native`): they compute only allowed blocks, forward and backward, in C++.

FlashAttention-2 (Dao 2023) over blocks of 64 × 64. Half precision has float32 sums; float16 is computed in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.kernels.kept import name_changed, owned
from headwise.kernels.kernel import Cost, input_output_bytes, machine, matrix_flops, output_bytes
from headwise.kernels.once import once_differentiable
from headwise.kernels.speeds import CPU
from headwise.native import attend, operators
from headwise.native.library import instruction_set
from headwise.native.sight import SIZE, find_sight

OPTIONS = attend.OPTIONS
READS_INT8 = True

# By instruction set: the share of the nominal speed that large calls reach in float32 and in half precision, where
# scaled_dot_product_attention reaches 0.95 with the same instruction set. `benchmarks/native.py` measures these shares.
SHARES = {
    "portable": (0.75, 1.2),
    "avx2": (1.0, 1.15),
    "avxvnni": (1.0, 1.15),
    "avx512": (1.15, 1.15),
    "avx512vnni": (1.15, 1.15),
    "avx512bf16": (1.15, 1.4),
    "amx": (1.15, 1.4),
    "dotprod": (1.0, 1.0),  # those of ARM were not measured
    "bf16": (1.0, 1.0),
}
FEW_QUERIES = 0.5  # the share that calls of few queries and many keys reach, in any dtype

ROWS = 16  # the fewest rows that are multiplied together
PIECE = 1024  # rows of a piece of work; PIECE in src/tile.hpp


def refuse(call: AttentionCall) -> str | None:
    """Return why the native kernels cannot run a call; None if they can."""
    return attend.refuse(call)


def cost(call: AttentionCall) -> Cost:
    """Estimate the cost of computing the blocks' cells, and of packing keys and values for each piece of work.

    (A piece of work has `PIECE` rows.) For few queries it is the cost of reading keys and values once.
    """
    batch, heads, q_len, k_len = call.shape
    if attend.is_few(call):
        flops = matrix_flops(call, batch * heads * find_sight(call.mask, q_len, k_len).cells)
        moved = input_output_bytes(call)
        here = machine(call)
        share = FEW_QUERIES * CPU.flops / here.flops  # the same speed in any dtype
        return Cost(flops, moved, output_bytes(call), here.time(flops, moved, share=share, calls=2))
    rows = -(-q_len // ROWS) * ROWS / q_len
    cells = find_sight(call.mask, q_len, k_len).cells
    flops = int(matrix_flops(call, batch * heads * cells) * rows)
    keys = (call.k.numel() + call.v.numel()) * call.q.element_size()
    seen = min(1.0, cells / min(q_len, SIZE) / k_len)  # the share of the keys that is read, about
    pieces = -(-q_len * call.heads_per_key_head // PIECE)
    moved = input_output_bytes(call) + int(keys * (seen - 1.0 + 0.5 * pieces * seen))  # packed numbers stay in caches
    share = SHARES[instruction_set() or "portable"][call.q.dtype != torch.float32]
    return Cost(flops, moved, output_bytes(call), machine(call).time(flops, moved, share=share))


def is_worth_compiling(call: AttentionCall) -> bool:
    """Whether a graph of torch.compile should use this kernel. The answer does not depend on the sizes of the call.

    An exported program runs without headwise: it contains this kernel only if the kernel is requested by name.
    """
    if torch.compiler.is_exporting() or instruction_set() == "portable":
        return False
    learned = call.sinks is not None or call.slopes is not None
    if call.softcap or call.dropout or learned or call.q.dtype != torch.float32:
        return True
    band = None if call.mask is None else call.mask.band()
    return band is not None and not isinstance(band[0], float)  # a window


def run(call: AttentionCall) -> Tensor:
    """Compute the output [B, H, Q, E]."""
    if torch.compiler.is_compiling():
        return operators.attend(call)
    return run_and_look(call)[0]


def run_and_look(call: AttentionCall) -> tuple[Tensor, bool]:
    """Return the output, and True if all of it is finite; False may also mean that this was not checked."""
    seed = int(torch.randint(2**62, (), device="cpu")) if call.dropout else 0
    if call.trains:
        out: Tensor = _Native.apply(call.q, call.k, call.v, call.bias, call.slopes, call.sinks, call, seed)
        name_changed(out, call.option_tensors())
        return out, False  # (NaN in a key may reach a gradient even where it did not reach the output)
    out = _empty(call)
    return out, attend.forward(call, out, seed=seed)


def _empty(call: AttentionCall) -> Tensor:
    return call.q.new_empty((*call.q.shape[:3], call.v.shape[-1]))


class _Native(torch.autograd.Function):
    """The autograd function of the native kernels: it runs their forward and their backward."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        q, k, v, bias, slopes, sinks, call, seed = given
        out = _empty(call)
        highest, log_sum = (q.new_empty(q.shape[:3], dtype=torch.float32) for _ in range(2))
        sight = find_sight(call.mask, *call.shape[2:])  # its own integers: the mask may change before backward
        attend.forward(call, out, sight=sight, seed=seed, highest=highest, log_sum=log_sum)
        ctx.save_for_backward(q, k, v, owned(bias), owned(slopes), owned(sinks), out, highest, log_sum)
        ctx.rest = {"scale": call.scale, "softcap": call.softcap, "dropout": call.dropout}
        ctx.how = {"sight": sight, "seed": seed}
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, saved: tuple[Any, ...], d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, slopes, sinks, out, highest, log_sum = saved
        call = AttentionCall(q, k, v=v, bias=bias, slopes=slopes, sinks=sinks, **ctx.rest)
        asked = dict(zip(("with_bias", "with_slopes", "with_sinks"), ctx.needs_input_grad[3:6], strict=True))
        gradients = attend.backward(call, out, highest, log_sum, d_out, **ctx.how, **asked)
        return *gradients, None, None
