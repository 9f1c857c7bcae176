"""The definition: every option, any dtype, written to be read. Every other kernel is tested against it."""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.kernels.kernel import (
    Cost,
    input_output_bytes,
    machine,
    matrix_flops,
    output_bytes,
)


def refuse(call: AttentionCall) -> str | None:
    """Never: whatever the call says, this is what it means."""
    return None


def cost(call: AttentionCall) -> Cost:
    """Several passes over the whole matrix of scores in memory."""
    cells = call.q.shape[:3].numel() * call.k.shape[2]
    flops = matrix_flops(call, cells)
    matrix = cells * max(4, call.q.element_size())
    moved = input_output_bytes(call) + 8 * matrix
    return Cost(flops, moved, 3 * matrix + output_bytes(call), machine(call).time(flops, moved))


def run(call: AttentionCall) -> Tensor:
    """softmax(scores) v, with float32 (or better) softmax, and 0 for a query that may attend to nothing."""
    weights = attention_weights(call.scores(), call.sinks)
    if call.dropout:
        weights = torch.dropout(weights, call.dropout, train=True)
    v = call.usable(call.v).to(weights.dtype).repeat_interleave(call.heads_per_key_head, dim=1)
    return (weights @ v).to(call.q.dtype)


def attention_weights(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """exp(s - lse) of scores [B, H, Q, K]; a sink takes its share of the sum and gives nothing."""
    # An empty row is computed as if it were full of zeros, then set to 0: so are its gradients, where -inf gives NaN.
    empty = (scores == -torch.inf).all(-1, keepdim=True)
    scores = scores.masked_fill(empty, 0.0)
    if sinks is not None:
        sink = sinks.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:3], 1)
        weights = torch.softmax(torch.cat([scores, sink], dim=-1), dim=-1)[..., :-1]
    else:
        weights = torch.softmax(scores, dim=-1)
    return weights.masked_fill(empty, 0.0)
