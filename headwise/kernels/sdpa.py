"""Runs PyTorch's own scaled_dot_product_attention: every cell is computed, on torch's fastest fused kernel."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headwise.call import AttentionCall, finite_as
from headwise.kernels import exact, fused, tiled
from headwise.kernels.kept import name_changed, owned
from headwise.kernels.kernel import (
    Cost,
    cut_to_values,
    fused_inputs,
    input_output_bytes,
    machine,
    matrix_flops,
    output_bytes,
    refused,
)
from headwise.masks import Extent, Mask
from headwise.native.attend import watching
from headwise.softmax import EMPTY
from headwise.tiles import Run, Tile, TileList
from headwise.tracing import is_forward_mode, is_traced

OPTIONS = frozenset({"bias", "slopes", "sinks", "dropout"})

# Cells of [B, H, Q, K], and numbers in k, below which comparing kernels takes longer than the best could save.
WORTH_PLANNING = 2**16
# The same for one query a head on the CPU: it reads the keys, and another kernel could only save a part of that.
STEP_CELLS, STEP_NUMBERS = 2**17, 2**21
SHARE = 0.95  # of the nominal speed, in large calls
# Backward of half precision on a CPU: with float32 steps between, 3 to 6 times the time of the native kernels.
HALF_BACKWARD = 0.12


def refuse(call: AttentionCall) -> str | None:
    """Return the reason to refuse a call; None if there is none.

    Refused are sinks where torch gives no log-sum-exp to which to add them, forward-mode derivatives, and empty calls.
    """
    if 0 in call.shape:
        return "there are no queries or no keys"
    if is_forward_mode():
        return "it has no forward-mode derivatives"
    if call.sinks is not None:
        if is_traced():
            return "with sinks, torch.compile cannot follow it"
        if call.dropout:
            return "with sinks, it has no dropout"
        reason = tiled.refuse_tiles(call)
        return None if reason is None else refused("with sinks, {reason}", reason=reason)
    return None


def cost(call: AttentionCall) -> Cost:
    """Estimate the cost by `dense_cost`; with few queries, each query head reads its keys and values separately."""
    apart = call.shape[2] <= 16 and not groups_heads(call)
    return dense_cost(call, readings=call.heads_per_key_head if apart else 1.0)


def groups_heads(call: AttentionCall) -> bool:
    """Whether torch itself reads keys once for all heads that share them: on CUDA, for one query without a mask.

    Torch then also cuts the keys into parts, so that one sequence keeps the whole GPU busy.
    """
    return call.q.device.type != "cpu" and call.shape[2] == 1 and not call.biases and sees_all(call)


def dense_cost(call: AttentionCall, readings: float) -> Cost:
    """Estimate the cost of all cells (half of them for torch's is_causal), and of a mask [Q, K] if one is needed.

    `readings`: how many times keys and values are read.
    """
    batch, heads, q_len, k_len = call.shape
    cells = batch * heads * q_len * k_len
    halved = call.sinks is None and _is_causal(call)
    computed = batch * heads * _causal_cells(q_len, k_len) if halved else cells
    flops, moved, peak = matrix_flops(call, computed), input_output_bytes(call), output_bytes(call)
    moved += int((readings - 1) * (call.k.numel() + call.v.numel()) * call.q.element_size())
    here = machine(call)
    slow = call.trains and call.q.dtype.itemsize == 2 and call.q.device.type == "cpu"
    share = HALF_BACKWARD if slow else SHARE
    if needs_dense_mask(call):
        of_mask = (1, 1) if call.mask is None else (call.mask.batch or 1, call.mask.heads or 1)
        bias = call.take_options({})["bias"].shape if call.bias is not None else (1, 1)
        dense = max(of_mask[0], bias[0]) * q_len * k_len
        dense *= heads if call.slopes is not None else max(of_mask[1], bias[1])
        dense_bytes = dense * (1 + call.q.element_size())  # bool, then added to the scores
        moved, peak = moved + 2 * dense_bytes, peak + dense_bytes
        if call.q.device.type != "cpu":
            share = 0.4  # on CUDA the fastest fused kernel takes no mask
    if call.dropout or any(x.requires_grad for x in call.biases):
        # torch then falls back to its unfused path, which holds the matrix of weights.
        matrix = cells * max(4, call.q.element_size())
        moved, peak = moved + 30 * matrix, peak + 2 * matrix
    return Cost(flops, moved, peak, here.time(flops, moved, share=share))


def run(call: AttentionCall) -> Tensor:
    """Compute the output, with the smallest form of the mask: is_causal, a mask over keys, or a dense mask."""
    if call.sinks is not None:
        return tiled.run_tiles(call, _one_tile_each(call))
    is_causal = _is_causal(call)
    q, k, v, scale = fused_inputs(call)
    mask = None if is_causal else dense_mask(call)
    if call.trains and is_fused(call):  # backward needs an exact log-sum-exp
        is_bias = call.bias is not None and mask is not None and mask.data_ptr() == call.bias.data_ptr()
        out, lse = fused.attend(q, k, v, scale, owned(mask) if is_bias else mask, causal=is_causal)
        name_changed(out, {"bias": call.bias} if is_bias and call.bias is not None else {})
        return exact.rounded_rows(call, cut_to_values(call, out), lse)
    shared: dict[str, Any] = {"enable_gqa": True} if call.heads_per_key_head > 1 else {}
    out = scaled_dot_product_attention(q, k, v, mask, call.dropout, is_causal, scale=scale, **shared)
    return cut_to_values(call, out)


def is_small(q: Tensor, k: Tensor, *, masked: bool = False) -> bool:
    """Whether planning a call would take longer than the best kernel could save; never for an empty call."""
    (batch, heads, q_len, _), (_, key_heads, k_len, _) = q.shape, k.shape
    step = q_len == 1 and not masked and q.is_cpu and batch * key_heads >= torch.get_num_threads()
    cells, numbers = (STEP_CELLS, STEP_NUMBERS) if step else (WORTH_PLANNING, WORTH_PLANNING)
    return 0 < batch * heads * q_len * k_len < cells and k.numel() < numbers


def run_at_once(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor | None:
    """Compute the output of a call without options, if it is so small that planning would take longer than the call.

    The result is None if the call is not small, or needs more than torch's function. The tensors were checked before.
    """
    (_, heads, q_len, d), (_, key_heads, _, e) = q.shape, v.shape
    if not is_small(q, k) or d != e or is_forward_mode():
        return None
    if torch.is_autocast_enabled(q.device.type) or (scale is not None and not scale > 0.0):
        return None
    trains = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    if trains and q.is_cpu and watching(q, k, v) is None:
        out, lse = fused.attend(q, k, v, d**-0.5 if scale is None else scale)
        return out if exact.largest(lse) < exact.LARGE else None
    shared_by = heads // key_heads
    # Query heads become rows, as in kernels/decode.py; a few rows of half precision take longer than their keys twice.
    if q_len == 1 and q.is_cpu and shared_by >= (2 if q.dtype == torch.float32 else 4):
        grouped = q.squeeze(2).unflatten(1, (key_heads, shared_by))
        return scaled_dot_product_attention(grouped, k, v, scale=scale).flatten(1, 2)[:, :, None]
    shared: dict[str, Any] = {"enable_gqa": True} if shared_by > 1 else {}
    return scaled_dot_product_attention(q, k, v, scale=scale, **shared)


def _one_tile_each(call: AttentionCall) -> TileList:
    """Return one tile with all queries and keys for each matrix of the mask (each example and head, if they differ)."""
    _, _, q_len, k_len = call.shape
    batch, heads = (None, None) if call.mask is None else (call.mask.batch, call.mask.heads)
    runs = (Run(0, k_len, call.mask is not None),)
    places = itertools.product(range(batch) if batch else [None], range(heads) if heads else [None])
    return TileList((Tile(0, q_len, runs, b, h) for b, h in places), matrices=(batch or 1) * (heads or 1))


def is_fused(call: AttentionCall) -> bool:
    """Whether torch runs this call on its fused CPU kernel, which stores no weights, and we may call that directly."""
    if not call.q.is_cpu or call.dropout or any(x.requires_grad for x in call.biases):
        return False
    return not is_traced() and watching(call.q, call.k, call.v) is None


def sees_all(call: AttentionCall) -> bool:
    """Whether every pair is allowed, because there is no mask or it allows all, as in most decoding steps."""
    mask, (q_len, k_len) = call.mask, call.shape[2:]
    if mask is None:
        return True
    band = mask.band()
    if band is not None:
        return band[0] <= 1 - q_len and band[1] >= k_len - 1
    if is_traced():
        return False  # that would look at the numbers of a tensor
    if mask.cellwise:
        return False
    if q_len == 1:
        return mask.remember(("sees all", q_len, k_len), lambda mask: bool(_row(call, mask).all()))
    return mask.remember(("sees all", q_len, k_len), lambda mask: mask.extent(0, q_len, 0, k_len) is Extent.ALL)


def _row(call: AttentionCall, mask: Mask) -> Tensor:
    """Return which keys the first query sees, bool [B|1, H|1, 1, K]: a row that all layers of a step have."""
    k_len, device = call.shape[3], call.q.device

    def make(mask: Mask) -> Tensor:
        return mask.cells(torch.arange(1, device=device), torch.arange(k_len, device=device))

    return mask.remember(("row", k_len, device), make)


def dense_mask(call: AttentionCall) -> Tensor | None:
    """Return mask, bias and slopes in torch's form, of rank 4: bool, or floats to add; None if there are none."""
    allowed = None
    if call.mask is not None and not sees_all(call):
        if call.shape[2] == 1 or call.mask.key_only:
            allowed = _row(call, call.mask)
        else:
            allowed = call.mask.cells(*(torch.arange(n, device=call.q.device) for n in call.shape[2:]))
    bias = call.added()
    if bias is None:
        return allowed
    if call.q.device.type != "cpu":  # on the CPU a float32 mask goes with inputs in half precision
        bias = finite_as(bias, call.q.dtype)
    return bias if allowed is None else bias.masked_fill(~allowed, EMPTY)


def _is_causal(call: AttentionCall) -> bool:
    """Whether is_causal=True of PyTorch, which aligns the first query with the first key, is the same as the mask."""
    if call.biases or call.mask is None:
        return False
    if call.mask.band() == (-math.inf, 0):  # noqa: SIM103 (with sizes left open this is no bool, and torch wants one)
        return True
    return False


def _causal_cells(q_len: int, k_len: int) -> int:
    square = min(q_len, k_len)
    return square * (square + 1) // 2 + (q_len - square) * k_len


def needs_dense_mask(call: AttentionCall) -> bool:
    """Whether only a matrix [Q, K] can express the mask or the slopes."""
    if call.slopes is not None:
        return True
    return not (call.mask is None or call.mask.key_only or _is_causal(call) or sees_all(call))
