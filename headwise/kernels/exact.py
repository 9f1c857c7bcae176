"""Computes rows of the output again, by the definition of attention, where a fused kernel was wrong.

- NaN and infinity in a key or value must not reach queries that may not see it. A fused kernel multiplies them by a
  weight of 0, which gives NaN. `contained` finds such rows in the output.
- Where scores or a bias are so large that the log-sum-exp rounds, as with a bias of finfo.min, exp(s - lse) is wrong,
  which backward and merging need. `rounded_rows` finds such rows by their log-sum-exp.

Calls without such rows only pay for a check of their output.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from headwise.call import AttentionCall, suspend_autocast
from headwise.kernels.kept import name_changed, owned
from headwise.masks.additive import FORBIDS
from headwise.masks.bits import packed_bits, row_blocks, unpacked_bits
from headwise.masks.cellwise import fixed
from headwise.softmax import EMPTY, Normaliser, attention_weights
from headwise.tracing import is_traced

Run = Callable[[AttentionCall], Tensor]

CELLS = 2**22  # how many scores are in memory at a time
LARGE = 2.0**20  # a score whose last bit is 1 / 8


def rounded_rows(call: AttentionCall, out: Tensor, lse: Tensor) -> Tensor:
    """Return the output [B, H, Q, E], with the rows recomputed whose log-sum-exp [B, H, Q] is too large to be exact.

    If a training call may have scores of `LARGE` or more, a fused backward gives NaN to every key. Then all rows are
    computed again.
    """
    if is_traced() or largest(lse) < (limit := -FORBIDS if call.biases else LARGE):
        return out
    large = (lse.abs() >= limit) & (lse != EMPTY)
    if not bool(large.any()):
        return out
    return by_definition(call, out, None if call.trains and _may_be_large(call) else large)


def _may_be_large(call: AttentionCall) -> bool:
    """Whether the largest numbers of q and k allow a score of `LARGE` or more."""
    bound = abs(call.scale) * call.q.shape[-1] * largest(call.q.detach()) * largest(call.k.detach())
    return not bound < LARGE  # (NaN may)


def largest(x: Tensor) -> float:
    """Return the largest absolute value of a tensor; NaN if it has a NaN."""
    return torch.linalg.vector_norm(x, math.inf).item()


def usable(call: AttentionCall, used: Tensor | None) -> AttentionCall:
    """Return the call with 0 in place of keys and values that no query may see (not `used`), as these may be NaN.

    It is for calls whose output cannot be checked: on devices other than the CPU a check would have to wait for the
    device, and torch.compile cannot check at all.
    """
    if used is None:
        return call
    k, v = (x.masked_fill(~used[..., None], 0.0) for x in (call.k, call.v))
    return dataclasses.replace(call, k=k, v=v)


def contained(call: AttentionCall, out: Tensor, run: Run, drawn_from: Tensor | None) -> Tensor:
    """Return the output [B, H, Q, E], with the rows recomputed that got NaN from a key that they may not see.

    `run` is the kernel that made the output, and `drawn_from` the state of torch's generator before it ran: from both
    follows which weights dropout kept.
    """
    if is_finite(out) and (not out.requires_grad or is_finite(call.k, call.v)):
        return out  # (NaN in a key may reach a gradient even where it did not reach the output)
    # A row that sees a key of NaN, or is NaN itself, is NaN throughout. (Torch's fused kernel may give 0 if a row sees
    # nothing else.)
    bad_key = call.k.isnan().any(-1).repeat_interleave(call.heads_per_key_head, 1)[:, :, None]
    bad_row = call.q.isnan().any(-1)
    again = ~bad_row
    if not call.trains:
        finite = out.isfinite().all(-1)
        if bool(bad_key.any()):
            sees = [(call.allowed(rows) & bad_key).any(-1) for rows in row_blocks(call.shape, CELLS)]
            again &= finite == torch.cat(sees, dim=2)
        else:
            again &= ~finite
    if not bool(again.any()):
        return out
    kept = kept_weights(call, run, drawn_from) if call.dropout else None
    return by_definition(call, out, None if call.trains else again, kept)


def is_finite(*tensors: Tensor) -> bool:
    """Whether all numbers are finite. (If their sum is finite, they are; otherwise every number is checked.)"""
    for x in tensors:
        x = x.detach() if x.requires_grad else x
        if not math.isfinite(x.sum().item()) and not bool(x.isfinite().all()):
            return False
    return True


@torch.no_grad()
def kept_weights(call: AttentionCall, run: Run, drawn_from: Tensor | None) -> Tensor:
    """Find which weights a kernel kept in a call with dropout, as bits [B, H, Q, ⌈K/8⌉], 1 = kept.

    A kernel drops weights by position, not by value. So it runs again with equal weights, and with values that are
    columns of the identity matrix.

    Args:
        call: any call with the sizes and the dtype of the call in question.
        run: runs the kernel.
        drawn_from: the state of torch's generator when the kernel ran; None = the kernel draws no random numbers.
    """
    batch, heads, q_len, k_len = call.shape
    q, k = torch.zeros_like(call.q), torch.zeros_like(call.k)
    every = AttentionCall(q, k, v=k, dropout=call.dropout)
    found, keys = [], torch.arange(k_len, device=q.device)
    for some in keys.split(max(1, CELLS // max(1, batch * heads * q_len, k_len))):
        one = (keys[:, None] == some).to(q.dtype)
        if drawn_from is not None:
            torch.set_rng_state(drawn_from)
        found.append(run(dataclasses.replace(every, v=one.expand(*k.shape[:2], -1, -1))) != 0)
    return packed_bits(torch.cat(found, dim=3))


def by_definition(call: AttentionCall, out: Tensor, again: Tensor | None, kept: Tensor | None = None) -> Tensor:
    """Return `out` with the rows where `again`, bool [B, H, Q], is True recomputed by the definition; None = all rows.

    The definition is dropout(softmax(scores)) v, written without a fused kernel. `kept`: the weights that dropout kept
    (`kept_weights`); None = the call has no dropout.
    """
    found, given = [], (call.q, call.k, call.v, *map(owned, call.option_tensors().values()))
    if call.trains and call.mask is not None:  # backward evaluates the mask again
        call = dataclasses.replace(call, mask=fixed(call.mask, *call.shape[2:]))
    for rows in row_blocks(call.shape, CELLS):
        if again is not None and not bool(again[:, :, rows].any()):
            found.append(out[:, :, rows])
            continue
        of_rows: Any = call, rows, None if kept is None else kept[:, :, rows], *given
        part = checkpoint(_compute_rows, *of_rows, use_reentrant=False) if call.trains else _compute_rows(*of_rows)
        found.append(part if again is None else torch.where(again[:, :, rows, None], part, out[:, :, rows]))
    out = torch.cat(found, dim=2)
    name_changed(out, call.option_tensors())
    return out


def _compute_rows(call: AttentionCall, rows: slice, kept: Tensor | None, *given: Tensor) -> Tensor:
    """Compute some rows of the output by the definition; `given`: q, k, v and option tensors in place of the call's."""
    tensors: dict[str, Any] = dict(zip(("q", "k", "v", *call.option_tensors()), given, strict=True))
    call = dataclasses.replace(call, **tensors)
    with suspend_autocast(call.q.device):
        seen = call.allowed(rows)
        weights = _dropped(call, compute_weights(call, rows, seen), kept)
        return weighed_values(call, weights, seen).to(call.q.dtype)


def gradients(
    call: AttentionCall, normaliser: Normaliser, out: Tensor, d_out: Tensor, kept: Tensor | None
) -> tuple[Tensor, ...]:
    """Compute gradients of q, k and v by the definition of attention, for a call with only some keys of its rows.

    Args:
        normaliser, out, d_out: the normaliser, the output and the gradient of the output, over all keys of the rows.
        kept: the result of `kept_weights`; None = all weights are kept.
    """
    leaves = [x.detach().to(call.dtype).requires_grad_() for x in (call.q, call.k, call.v)]
    call = dataclasses.replace(call, q=leaves[0], k=leaves[1], v=leaves[2])
    total = [torch.zeros_like(x) for x in leaves]
    for rows in row_blocks(call.shape, CELLS):
        seen = call.allowed(rows)
        with torch.enable_grad():
            weights = Normaliser(*(x[:, :, rows] for x in normaliser)).weights(_scores(call, rows, seen))
            weights = weights.masked_fill(~seen, 0.0)
            found = weighed_values(call, _dropped(call, weights, None if kept is None else kept[:, :, rows]), seen)
            sums = weights.sum(-1)
        d = d_out[:, :, rows].to(call.dtype)
        shift = -(d * out[:, :, rows]).sum(-1)  # dS = A (dA - Σ A dA)
        for x, more in zip(total, torch.autograd.grad([found, sums], leaves, [d, shift]), strict=True):
            x += more
    return tuple(total)


def compute_weights(call: AttentionCall, rows: slice, allowed: Tensor) -> Tensor:
    """Compute the weights [B, H, rows, K] of some rows by the definition of attention: only allowed pairs contribute.

    `allowed`: bool [B|1, H|1, rows, K].
    """
    return attention_weights(_scores(call, rows, allowed), call.sinks).masked_fill(~allowed, 0.0)


def _scores(call: AttentionCall, rows: slice, allowed: Tensor) -> Tensor:
    every = allowed.expand(*call.shape[:2], -1, -1)
    k = call.k.to(call.dtype).repeat_interleave(call.heads_per_key_head, 1)
    s = call.part(rows=rows).from_products(_Products.apply(call.q[:, :, rows].to(call.dtype), k, every))
    return s.masked_fill(~allowed, EMPTY)


def _dropped(call: AttentionCall, weights: Tensor, kept: Tensor | None) -> Tensor:
    if kept is None:
        return weights
    return weights * unpacked_bits(kept)[..., : weights.shape[3]] / (1.0 - call.dropout)


def weighed_values(call: AttentionCall, weights: Tensor, allowed: Tensor) -> Tensor:
    """Multiply weights [B, H, rows, K] by the values of a call, such that only allowed pairs contribute."""
    v = call.v.to(weights.dtype).repeat_interleave(call.heads_per_key_head, 1)
    out: Tensor = _Weighed.apply(weights, v, allowed.expand(*call.shape[:2], -1, -1))
    return out


class _Products(torch.autograd.Function):
    """Computes q kᵀ such that only allowed pairs contribute to its gradient."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, allowed: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, allowed)
        return (q @ k.mT).masked_fill_(~allowed, 0.0)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        q, k, allowed = ctx.saved_tensors
        return weighed(d, k, allowed), weighed(d.mT, q, allowed.mT), None


class _Weighed(torch.autograd.Function):
    """Computes A v (weights times values) such that only allowed pairs contribute, forward and backward."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
        ctx.save_for_backward(weights, v, allowed)
        return weighed(weights, v, allowed)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        weights, v, allowed = ctx.saved_tensors
        return (d @ v.mT).masked_fill_(~allowed, 0.0), weighed(weights.mT, d, allowed.mT), None


def weighed(a: Tensor, x: Tensor, allowed: Tensor) -> Tensor:
    """Multiply a [.., r, c] by x [.., c, e]; row j of x contributes only to rows r with allowed[.., r, j]."""
    odd = ~x.isfinite().all(-1, keepdim=True)
    out = a.masked_fill(~allowed, 0.0) @ x.masked_fill(odd, 0.0)
    for j in odd[..., 0].flatten(0, -2).any(0).nonzero()[:, 0].tolist():
        row = torch.where(odd[..., j : j + 1, :], x[..., j : j + 1, :], 0.0)
        out = out + torch.where(allowed[..., j : j + 1], a[..., j : j + 1] * row, 0.0)
    return out
