"""Torch's fused CPU kernel for attention and its backward: private operators, which are looked up only in this file.

Where torch has no operators of these names, functions of this file compute the same with public operators. These
functions hold the scores of a whole tile in memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from headwise.softmax import EMPTY, Normaliser, attention_weights

Forward: TypeAlias = Callable[..., tuple[Tensor, Tensor]]
Backward: TypeAlias = Callable[..., tuple[Tensor, Tensor, Tensor]]
NAME = "_scaled_dot_product_flash_attention_for_cpu"
SHARES = "2.9"  # in an older torch the operator does not support query heads that share a key head


def find() -> tuple[Forward, Backward]:
    """Return the operator and its backward, or replacements with the same arguments and results."""
    try:
        # The function of this name takes 4 microseconds less per call than the operator. The backward has no such
        # function.
        found = getattr(torch, NAME), getattr(torch.ops.aten, f"{NAME}_backward")
    except AttributeError:
        found = _forward, _backward
    else:
        if torch.__version__ >= SHARES:
            return found
    return functools.partial(_with_copies, found[0]), functools.partial(_backward_with_copies, found[1])


def _with_copies(
    forward: Forward, q: Tensor, k: Tensor, v: Tensor, *args: Any, **settings: Any
) -> tuple[Tensor, Tensor]:
    """Run `forward` with a copy of the keys and values for each query head, where torch cannot share key heads."""
    return forward(q, *_copies(q, k, v), *args, **settings)


def _backward_with_copies(
    backward: Backward, d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *args: Any, **settings: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Run `backward` with a copy of the keys and values for each query head, and sum the gradients of the copies."""
    dq, *copies = backward(d_out, q, *_copies(q, k, v), *args, **settings)
    dk, dv = (x.unflatten(1, (k.shape[1], -1)).sum(2) for x in copies)
    return dq, dk, dv


def _copies(q: Tensor, *shared: Tensor) -> list[Tensor]:
    copies = q.shape[1] // shared[0].shape[1]
    return [x.repeat_interleave(copies, 1) if copies > 1 else x for x in shared]


def _forward(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float, is_causal: bool, *, attn_mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    scores = _scores(q, k, is_causal, attn_mask, scale)
    out = attention_weights(scores) @ v.to(scores.dtype)
    return out.to(q.dtype), Normaliser.of(scores.detach()).lse


def _backward(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    scores = _scores(q, k, is_causal, attn_mask, scale)
    weights = Normaliser.of_lse(lse).weights(scores)
    dtype = q.dtype
    d_out, q, k, v, out = (x.to(scores.dtype) for x in (d_out, q, k, v, out))
    d_products = scale * weights * (d_out @ v.mT - (d_out * out).sum(-1, keepdim=True))  # dS = A (dA - Σ A dA)
    return (d_products @ k).to(dtype), (d_products.mT @ q).to(dtype), (weights.mT @ d_out).to(dtype)


def _scores(q: Tensor, k: Tensor, is_causal: bool, attn_mask: Tensor | None, scale: float) -> Tensor:
    """Compute the scores [B, H, Q, K], in float32 or better."""
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = scale * (q.to(wide) @ k.to(wide).mT)
    if is_causal:
        later = torch.ones(scores.shape[2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, EMPTY)
    return scores if attn_mask is None else scores + attn_mask
