"""Rows that a fused kernel gets wrong, computed again by the definition. Healthy calls pay for a look at the output.

- NaN and infinity in a key or value must not reach queries that may not see it. A fused kernel multiplies them by a
  weight of 0, which is NaN. `contained` finds that in the output.
- Where the log-sum-exp is so large that it rounds, as beside a bias of finfo.min, exp(s - lse) is wrong. Backward and
  merging need it. `rounded_rows` finds that in the log-sum-exp.
- Where products are that large, forward and backward round them differently too: exp(s - lse) is then infinite.
  `unrounded` finds that in queries and keys.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from headwise.call import AttentionCall, as_written
from headwise.masks.additive import FORBIDS
from headwise.masks.bits import row_blocks
from headwise.native.attend import watching
from headwise.softmax import EMPTY, attention_weights

CELLS = 2**22  # of scores that are held at a time
LARGE = 2.0**20  # a score whose last bit is 1 / 8


def rounded_rows(call: AttentionCall, out: Tensor, lse: Tensor) -> Tensor:
    """The output [B, H, Q, E], with the rows computed again whose log-sum-exp [B, H, Q] is too large to be exact."""
    if not call.biases or torch.compiler.is_compiling():
        return out
    large = (lse.abs() >= -FORBIDS) & (lse != EMPTY)
    if not bool(large.any()):
        return out
    return _replaced(call, out, large)


def unrounded(call: AttentionCall, out: Tensor) -> Tensor:
    """The output [B, H, Q, E], by the definition if a score is so large that a fused kernel loses gradients."""
    if not out.requires_grad or call.dropout or watching(call.q, call.k):  # with dropout they keep the weights
        return out
    if not may_be_large(call.q, call.k, call.scale) or (call.softcap is not None and call.softcap < LARGE):
        return out
    with torch.no_grad():
        highest = [call.scores(rows).amax(-1) for rows in row_blocks(call.shape, CELLS)]
    is_large = any(bool(((x.abs() >= LARGE) & (x != EMPTY)).any()) for x in highest)
    return _replaced(call, out, None) if is_large else out


def may_be_large(q: Tensor, k: Tensor, scale: float) -> bool:
    """Whether the largest numbers of q and k allow a score of `LARGE`."""
    if not q.numel() or not k.numel():
        return False
    largest = [x.detach().abs().max().item() for x in (q, k)]
    return abs(scale) * q.shape[-1] * largest[0] * largest[1] >= LARGE


def usable(call: AttentionCall) -> AttentionCall:
    """The call with 0 for keys and values that nobody may attend to: for calls whose output cannot be looked at.

    On other devices than the CPU a look would wait, and torch.compile cannot look at all.
    """
    used = call.used_keys
    if used is None:
        return call
    k, v = (x.masked_fill(~used[..., None], 0.0) for x in (call.k, call.v))
    return dataclasses.replace(call, k=k, v=v)


def contained(call: AttentionCall, out: Tensor) -> Tensor:
    """The output [B, H, Q, E], with the rows computed again that NaN reached from a key that they may not see."""
    if _is_finite(out) and (not out.requires_grad or (_is_finite(call.k) and _is_finite(call.v))):
        return out  # (a gradient can meet a key that the output did not)
    if call.dropout:  # which weights were dropped is not known
        return out
    # A row that sees a key of NaN, or is NaN itself, is NaN throughout: it is right as it is.
    bad_key = call.k.isnan().any(-1).repeat_interleave(call.heads_per_key_head, 1)[:, :, None]
    bad_row = call.q.isnan().any(-1)
    again = ~bad_row if call.trains else ~bad_row & ~out.isfinite().all(-1)
    if not call.trains and bool(again.any()) and bool(bad_key.any()):
        again &= ~torch.cat([(call.allowed(rows) & bad_key).any(-1) for rows in row_blocks(call.shape, CELLS)], dim=2)
    if not bool(again.any()):
        return out
    return _replaced(call, out, None if call.trains else again)


def _is_finite(x: Tensor) -> bool:
    """Whether all numbers are finite. Their sum tells, if it is finite itself."""
    x = x.detach() if x.requires_grad else x
    return math.isfinite(x.sum().item()) or bool(x.isfinite().all())


def _replaced(call: AttentionCall, out: Tensor, again: Tensor | None) -> Tensor:
    """The output with some rows, bool [B, H, Q], computed again by the definition; None = all rows."""
    found = []
    for rows in row_blocks(call.shape, CELLS):
        if again is not None and not bool(again[:, :, rows].any()):
            found.append(out[:, :, rows])
            continue
        given = (call.q, call.k, call.v, *call.option_tensors().values())
        part = (
            checkpoint(_of_rows, call, rows, *given, use_reentrant=False)
            if call.trains
            else _of_rows(call, rows, *given)
        )
        found.append(part if again is None else torch.where(again[:, :, rows, None], part, out[:, :, rows]))
    return torch.cat(found, dim=2)


def _of_rows(call: AttentionCall, rows: slice, q: Tensor, k: Tensor, v: Tensor, *options: Tensor) -> Tensor:
    """The output of some rows: no pair that is not allowed has a part in anything, whatever it holds."""
    given: dict[str, Any] = dict(zip(call.option_tensors(), options, strict=True))
    call = dataclasses.replace(call, q=q, k=k, v=v, **given)
    allowed = call.allowed(rows).expand(*call.shape[:2], -1, -1)
    n = call.heads_per_key_head
    q, k, v = q[:, :, rows].to(call.dtype), *(x.to(call.dtype).repeat_interleave(n, 1) for x in (k, v))
    with as_written(q.device):
        s = call.part(rows=rows).from_products(_Products.apply(q, k, allowed))
        weights = attention_weights(s.masked_fill(~allowed, EMPTY), call.sinks).masked_fill(~allowed, 0.0)
        return _Weighed.apply(weights, v, allowed).to(call.q.dtype)


class _Products(torch.autograd.Function):
    """q kᵀ, whose gradient has a part only in the pairs that are allowed."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, allowed: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, allowed)
        return (q @ k.mT).masked_fill_(~allowed, 0.0)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        q, k, allowed = ctx.saved_tensors
        return weighed(d, k, allowed), weighed(d.mT, q, allowed.mT), None


class _Weighed(torch.autograd.Function):
    """A v, in which only allowed pairs have a part, forward and backward."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
        ctx.save_for_backward(weights, v, allowed)
        return weighed(weights, v, allowed)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        weights, v, allowed = ctx.saved_tensors
        return (d @ v.mT).masked_fill_(~allowed, 0.0), weighed(weights.mT, d, allowed.mT), None


def weighed(a: Tensor, x: Tensor, allowed: Tensor) -> Tensor:
    """a [.., r, c] times x [.., c, e], in which row j of x has a part only in the rows where allowed[.., r, j]."""
    odd = ~x.isfinite().all(-1, keepdim=True)
    out = a.masked_fill(~allowed, 0.0) @ x.masked_fill(odd, 0.0)
    for j in odd[..., 0].flatten(0, -2).any(0).nonzero()[:, 0].tolist():
        row = torch.where(odd[..., j : j + 1, :], x[..., j : j + 1, :], 0.0)
        out = out + torch.where(allowed[..., j : j + 1], a[..., j : j + 1] * row, 0.0)
    return out
