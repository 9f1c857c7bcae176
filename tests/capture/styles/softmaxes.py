"""Ways to write the softmax itself: by hand, in pieces, into a buffer, in another precision."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.capture.styles.style import CAUSAL, B, D, H, Q, style

Two = tuple[Tensor, Any]


@style
def exp_and_sum(q: Tensor, k: Tensor, v: Tensor) -> Two:
    e = torch.exp(q @ k.mT)
    w = e / e.sum(-1, keepdim=True)
    return w @ v, w


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
def exp_less_logsumexp(q: Tensor, k: Tensor, v: Tensor) -> Two:
    s = q @ k.mT
    w = torch.exp(s - torch.logsumexp(s, -1, keepdim=True))
    return w @ v, w


@style
def masked_exp(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """Masked after exp, by a product."""
    e = torch.exp(q @ k.mT) * CAUSAL
    w = e / e.sum(-1, keepdim=True)
    return w @ v, w


@style
def softmax_of_softmin(q: Tensor, k: Tensor, v: Tensor) -> Two:
    w = functional.softmin(-(q @ k.mT), dim=-1)
    return w @ v, w


@style
def softmax_with_a_dtype(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """As in Llama: the scores of half precision become float32 in the softmax."""
    q, k, v = (x.bfloat16() for x in (q, k, v))
    w = functional.softmax(q @ k.mT * D**-0.5, dim=-1, dtype=torch.float32).to(q.dtype)
    return w @ v, w


@style
def half_precision(q: Tensor, k: Tensor, v: Tensor) -> Two:
    q, k, v = (x.half() for x in (q, k, v))
    w = (q @ k.mT * D**-0.5).softmax(-1)
    return w @ v, w


@style
def bfloat16(q: Tensor, k: Tensor, v: Tensor) -> Two:
    q, k, v = (x.bfloat16() for x in (q, k, v))
    w = (q @ k.mT * D**-0.5).softmax(-1)
    return w @ v, w


@style
def float64(q: Tensor, k: Tensor, v: Tensor) -> Two:
    q, k, v = (x.double() for x in (q, k, v))
    w = (q @ k.mT * D**-0.5).softmax(-1)
    return w @ v, w


@style
def scores_in_float64(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """Only the softmax is in float64."""
    w = (q @ k.mT).double().softmax(-1).to(v.dtype)
    return w @ v, w


@style
def autocast(q: Tensor, k: Tensor, v: Tensor) -> Two:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        w = (q @ k.mT).softmax(-1)
        return w @ v, w.bfloat16()


@style
def softmax_into_a_buffer(q: Tensor, k: Tensor, v: Tensor) -> Two:
    with torch.no_grad():
        w = torch.empty(B, H, Q, Q)
        torch.softmax(q @ k.mT, dim=-1, out=w)
        return w @ v, w


@style
def scores_into_a_buffer(q: Tensor, k: Tensor, v: Tensor) -> Two:
    with torch.no_grad():
        s = torch.empty(B, H, Q, Q)
        torch.matmul(q, k.mT, out=s)
        w = s.softmax(-1)
        return w @ v, w


@style
def softmax_over_the_scores(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """As in CompVis' Stable Diffusion: the weights are written over the scores, to save memory."""
    s = q.detach() @ k.detach().mT
    s[:1] = s[:1].softmax(-1)
    s[1:] = s[1:].softmax(-1)
    return s @ v, s.clone()


@style
def softmax_assigned_to_a_buffer(q: Tensor, k: Tensor, v: Tensor) -> Two:
    w = torch.zeros(B, H, Q, Q)
    w[:] = (q @ k.mT).softmax(-1)
    return w @ v, w.clone()


@style
def scores_set_in_a_buffer(q: Tensor, k: Tensor, v: Tensor) -> Two:
    s = torch.full((B, H, Q, Q), -math.inf)
    s[:] = q @ k.mT
    w = s.softmax(-1)
    return w @ v, w


@style
def softmax_of_scores_kept_transposed(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """The softmax over dimension 2 of kᵀq, and the transposed product."""
    w = (k @ q.mT).softmax(2)
    return w.mT @ v, w.mT


@style
def softmax_2d_of_one_query(image: Tensor) -> Two:
    """Over all positions of an image, for one query: as in global context blocks (GCNet)."""
    weight = torch.linspace(-1, 1, image.shape[1]).view(1, -1, 1, 1)
    w = functional.conv2d(image, weight).flatten(2).softmax(-1)
    return torch.matmul(image.flatten(2), w.mT), w[:, None]


@style
def nn_softmax_of_a_flat_view(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """Scores as rows of one matrix."""
    w = nn.Softmax(dim=1)(torch.matmul(q, k.mT).view(-1, Q)).view(B, H, Q, Q)
    return w @ v, w


class _Softmax(torch.autograd.Function):
    """A softmax with its own backward pass, as fused kernels are wrapped."""

    @staticmethod
    def forward(ctx: Any, s: Tensor) -> Tensor:
        w = s.softmax(-1)
        ctx.save_for_backward(w)
        return w

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (w,) = ctx.saved_tensors
        return w * (grad - (w * grad).sum(-1, keepdim=True))


@style
def softmax_by_an_autograd_function(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """As DeBERTa's XSoftmax."""
    w = _Softmax.apply(q @ k.mT)
    return w @ v, w


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
def taylor_softmax(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """1 + s + s²/2 in place of exp: not a softmax, but weights of keys that sum to 1."""
    s = q @ k.mT * 0.3
    e = 1 + s + 0.5 * s**2
    w = e / e.sum(-1, keepdim=True)
    return w @ v, w


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
def chunks_of_keys_weighed_afterwards(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """As in diffusers and AminRezaei's code: all chunks first, then their maxima and sums."""
    outs, sums, maxima = [], [], []
    for kc, vc in zip(k.split(2, 2), v.split(2, 2), strict=True):
        s = torch.einsum("bhqd,bhkd->bhqk", q, kc)
        maxima.append(s.amax(-1, keepdim=True).detach())
        e = torch.exp(s - maxima[-1])
        outs.append(torch.einsum("bhqk,bhkd->bhqd", e, vc))
        sums.append(e.sum(-1, keepdim=True))
    scale = torch.exp(torch.stack(maxima) - torch.stack(maxima).amax(0))
    out = (torch.stack(outs) * scale).sum(0) / (torch.stack(sums) * scale).sum(0)
    return out, lambda: (q @ k.mT).softmax(-1)


@style
def two_softmaxes_joined_by_their_sums(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """Ring attention and split keys: each part is an attention of its own, and their outputs are weighed."""
    parts = [(q @ kc.mT, vc) for kc, vc in zip(k.split(3, 2), v.split(3, 2), strict=True)]
    sums = torch.stack([s.logsumexp(-1) for s, _ in parts]).softmax(0)
    out = sum(share[..., None] * (s.softmax(-1) @ vc) for share, (s, vc) in zip(sums, parts, strict=True))
    assert isinstance(out, Tensor)
    return out, tuple(lambda s=s: s.softmax(-1) for s, _ in parts)
