"""Ways to write the softmax itself: by hand, in pieces, into a buffer, in another precision."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tests.capture.styles.style import CAUSAL, B, D, H, Q, style

Two = tuple[Tensor, Any]


@style
def exp_less_the_maximum(q: Tensor, k: Tensor, v: Tensor) -> Two:
    s = (q @ k.mT).masked_fill(~CAUSAL, -math.inf)
    e = (s - s.max(dim=-1, keepdim=True)[0]).exp()
    w = e / e.sum(dim=-1, keepdim=True)
    return w @ v, w


@style
def divided_after_the_values(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """The sum divides the output instead of the weights."""
    e = torch.exp(q @ k.mT)
    return (e @ v) / e.sum(-1, keepdim=True), e / e.sum(-1, keepdim=True)


@style
def exp_of_log_softmax(q: Tensor, k: Tensor, v: Tensor) -> Two:
    w = functional.log_softmax(q @ k.mT, dim=-1).exp()
    return w @ v, w


@style
def softmax_with_a_dtype(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """As in Llama: the scores of half precision become float32 in the softmax."""
    q, k, v = (x.bfloat16() for x in (q, k, v))
    w = functional.softmax(q @ k.mT * D**-0.5, dim=-1, dtype=torch.float32).to(q.dtype)
    return w @ v, w


@style
def softmax_into_a_buffer(q: Tensor, k: Tensor, v: Tensor) -> Two:
    with torch.no_grad():
        w = torch.empty(B, H, Q, Q)
        torch.softmax(q @ k.mT, dim=-1, out=w)
        return w @ v, w


@style
def softmax_assigned_to_a_buffer(q: Tensor, k: Tensor, v: Tensor) -> Two:
    w = torch.zeros(B, H, Q, Q)
    w[:] = (q @ k.mT).softmax(-1)
    return w @ v, w.clone()


class _Attention(torch.autograd.Function):
    """Attention as a whole in an autograd Function, as FlashAttention's."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT).softmax(-1) @ v

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        raise NotImplementedError


@style
def attention_by_an_autograd_function(q: Tensor, k: Tensor, v: Tensor) -> Two:
    return _Attention.apply(q.requires_grad_(), k, v), lambda: (q @ k.mT).softmax(-1)


@torch.library.custom_op("tests_styles::attend", mutates_args=())
def _kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1) @ v


@style
def attention_by_a_kernel(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """An operator of a library, as flash-attn's: nothing in it is seen, but its arguments are."""
    return torch.ops.tests_styles.attend(q, k, v), lambda: (q @ k.mT).softmax(-1)


@style
def running_maximum_over_keys(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """Rabe & Staats; FlashAttention in PyTorch: chunks of keys, a running maximum and sum."""
    out, total, highest = torch.zeros_like(q), torch.zeros(B, H, Q, 1), torch.full((B, H, Q, 1), -math.inf)
    for kc, vc in zip(k.split(2, 2), v.split(2, 2), strict=True):
        s = q @ kc.mT
        now = torch.maximum(highest, s.amax(-1, keepdim=True))
        e, old = torch.exp(s - now), torch.exp(highest - now)
        out, total, highest = out * old + e @ vc, total * old + e.sum(-1, keepdim=True), now
    return out / total, lambda: (q @ k.mT).softmax(-1)


@style
def two_softmaxes_joined_by_their_sums(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """Ring attention and split keys: each part is an attention of its own, and their outputs are weighed."""
    parts = [(q @ kc.mT, vc) for kc, vc in zip(k.split(3, 2), v.split(3, 2), strict=True)]
    sums = torch.stack([s.logsumexp(-1) for s, _ in parts]).softmax(0)
    out = sum(share[..., None] * (s.softmax(-1) @ vc) for share, (s, vc) in zip(sums, parts, strict=True))
    assert isinstance(out, Tensor)
    return out, tuple(lambda s=s: s.softmax(-1) for s, _ in parts)
