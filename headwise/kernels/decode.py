"""A kernel for one query per head, as in decoding: query heads that share a key head become the rows of one matrix.

Keys and values are then read once for all these heads, while a kernel that computes head by head reads them H / G times
(H = query heads, G = key heads). A decoding step spends most of its time on reading keys and values. Shazeer 2019,
arXiv:1911.02150, section 3.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headwise.call import AttentionCall
from headwise.kernels import exact, fused, sdpa
from headwise.kernels.kernel import Cost, cut_to_values, fused_inputs, refused
from headwise.softmax import merge_parts
from headwise.tracing import is_traced

OPTIONS = frozenset({"bias", "slopes", "dropout"})
LEAST_KEYS = 512  # the fewest keys in one of the parts into which keys are cut: fewer are not worth another thread


def refuse(call: AttentionCall) -> str | None:
    """Return the reason to refuse several queries per head, unshared key heads, or what `sdpa` refuses; else None."""
    if call.shape[2] != 1:
        if is_traced():  # a length in a sentence would be a constant of the graph
            return "it is for one query a head"
        return refused("it is for one query a head (the call has Q = {queries})", queries=call.shape[2])
    if call.heads_per_key_head == 1:
        return "no key head is shared (H = G)"
    if call.trains and call.biases:
        return "it does not train with a bias or slopes"
    return sdpa.refuse(call)


def cost(call: AttentionCall) -> Cost:
    """Estimate the cost as for `sdpa`, except that keys and values are read once for all heads that share them.

    On the CPU this one reading takes longer than usual: 1.25 times as long in float32, twice in half precision. On CUDA
    it takes 5 times as long as in a call in which torch itself groups the heads (measured on an H100: 65,536 keys of 4
    heads).
    """
    held_up = 5.0 if sdpa.groups_heads(call) else 1.0
    if call.q.device.type == "cpu":
        held_up = 1.25 if call.q.dtype == torch.float32 else 2.0
    return sdpa.dense_cost(call, readings=held_up)


def run(call: AttentionCall) -> Tensor:
    """Compute the output by scaled_dot_product_attention on G heads; each has H / G queries, one per query head."""
    if not call.trains and call.scale > 0.0 and _begins(call.k, call.v):
        q, k, v, scale = call.q, call.k, call.k, call.scale  # no copy: columns that are no values are cut off
    else:
        q, k, v, scale = fused_inputs(call)
    groups = (k.shape[1], call.heads_per_key_head)
    q = q.squeeze(2).unflatten(1, groups)
    mask = sdpa.dense_mask(call)
    if mask is None and (parts := _parts(call)) > 1:
        out = in_parts(q, k, v, scale, parts)
    else:
        if mask is not None and mask.shape[1] > 1:
            mask = mask.squeeze(2).unflatten(1, groups)
        if call.trains and sdpa.is_fused(call):  # backward needs a log-sum-exp that is exact
            out, lse = fused.attend(q, k, v, scale, mask)
            out = cut_to_values(call, out.flatten(1, 2)[:, :, None])
            return exact.rounded_rows(call, out, lse.flatten(1, 2)[:, :, None])
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=call.dropout, scale=scale)
    return cut_to_values(call, out.flatten(1, 2)[:, :, None])


def in_parts(q: Tensor, k: Tensor, v: Tensor, scale: float, parts: int) -> Tensor:
    """Compute attention of one example with its keys cut into parts, which run in parallel and are merged.

    The log-sum-exps of the parts are used for merging. q [1, G, n, D], k [1, G, K, D], v [1, G, K, D] -> [1, G, n, D].
    Dao et al. 2023, Flash-Decoding.
    """
    length = k.shape[2] // parts
    even = parts * length

    def cut(x: Tensor) -> Tensor:
        return x[0, :, :even].unflatten(1, (parts, length)).transpose(0, 1)

    out, lse = fused.attend(q.expand(parts, -1, -1, -1), cut(k), cut(v), scale)
    if even < k.shape[2]:
        rest, rest_lse = fused.attend(q, k[:, :, even:], v[:, :, even:], scale)
        out, lse = torch.cat([out, rest]), torch.cat([lse, rest_lse])
    return merge_parts(out, lse)[None].to(q.dtype)


def _parts(call: AttentionCall) -> int:
    """Return into how many parts to cut the keys. Uncut, torch uses one thread per key head, and other threads idle.

    The result is two parts for each thread, so that a delayed thread delays the whole call less. 1 = do not cut.
    """
    if is_traced() or call.q.device.type != "cpu" or call.q.shape[0] > 1:
        return 1
    if call.trains or call.dropout or call.k.stride(-1) != 1 or call.v.stride(-1) != 1:
        return 1
    idle = call.k.shape[1] < torch.get_num_threads()
    return min(2 * torch.get_num_threads() // call.k.shape[1], call.shape[3] // LEAST_KEYS) if idle else 1


def _begins(k: Tensor, v: Tensor) -> bool:
    """Whether the values are the first columns of the keys, in the same memory, as in a compressed cache (MLA)."""
    if is_traced() or v.shape[-1] > k.shape[-1]:
        return False
    return k.data_ptr() == v.data_ptr() and k.stride() == v.stride()
