"""The definition of attention, with every option, for any dtype, easy to read. Other kernels are tested against it."""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.kernels.kernel import Cost, input_output_bytes, machine, matrix_flops, output_bytes

OPTIONS = frozenset({"bias", "slopes", "softcap", "sinks", "dropout"})
TRAINS_SOFTCAP = True


def refuse(call: AttentionCall) -> str | None:
    """Return None: this kernel defines what a call means, and refuses nothing."""
    return None


def cost(call: AttentionCall) -> Cost:
    """Estimate the cost of several passes over the matrix of scores in memory, and of keys copied for each head."""
    cells = call.q.shape[:3].numel() * call.k.shape[2]
    flops = matrix_flops(call, cells)
    matrix = cells * max(4, call.q.element_size())
    copies = call.heads_per_key_head if call.heads_per_key_head > 1 else 0
    copied = 2 * copies * (call.k.numel() + call.v.numel()) * max(4, call.q.element_size())
    moved = input_output_bytes(call) + 8 * matrix + copied
    return Cost(flops, moved, 3 * matrix + output_bytes(call), machine(call).time(flops, moved))


def run(call: AttentionCall) -> Tensor:
    """Compute softmax(scores) v, with the softmax in float32 (or better), and 0 for a query without keys."""
    weights = call.weights()
    if call.dropout:
        weights = torch.dropout(weights, call.dropout, train=True)
    v = call.v.to(weights.dtype).repeat_interleave(call.heads_per_key_head, dim=1)
    return (weights @ v).to(call.q.dtype)
