"""What happens to the weights after the softmax, and weights that are not a plain softmax over the keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.capture.styles.style import BIAS, CAUSAL, B, D, H, M, Q, add, style

Two = tuple[Tensor, Any]

MIX = torch.eye(H) * 0.5 + torch.linspace(0, 0.2, H * H).view(H, H)

STEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "renormalised": lambda w: (lambda u: u / u.sum(-1, keepdim=True))(w * CAUSAL),
    "renormalised by normalize": lambda w: functional.normalize(w * CAUSAL, p=1.0, dim=-1),
    "talking heads": lambda w: torch.einsum("bhij,hg->bgij", w, MIX),
    "talking heads by a convolution": lambda w: functional.conv2d(w, MIX[:, :, None, None]),
    "talking heads by a linear layer": lambda w: functional.linear(w.permute(0, 2, 3, 1), MIX).permute(0, 3, 1, 2),
    "re-attention": lambda w: functional.layer_norm(
        torch.einsum("bhij,hg->bgij", w, MIX).permute(0, 2, 3, 1), (H,)
    ).permute(0, 3, 1, 2),
    "gates of heads": lambda w: w * torch.linspace(0, 1, H).view(H, 1, 1),
    "a head mask of ones": lambda w: w * torch.ones(1, H, 1, 1),
    "filled in place": lambda w: w.masked_fill_(~CAUSAL, 0),
    "times a mask": lambda w: w * CAUSAL,
    "zeroed where there is nothing": lambda w: torch.nan_to_num(w),
    "of the heads in another order": lambda w: w[:, [1, 0, 3, 2]],
    "of the largest keys": lambda w: torch.where(w >= w.topk(2, -1).values[..., -1:], w, 0.0),
    "times an input": lambda w: w * BIAS.sigmoid(),
    "plus a residual": lambda w: 0.5 * w + 0.5 * BIAS.softmax(-1),
    "joined with the transposed": lambda w: (w + w.mT) / 2,
    "sorted": lambda w: w.sort(-1).values,
    "doubly normalised": lambda w: w / (w.sum(-2, keepdim=True) + 1e-9),
}


def _with(step: Callable[[Tensor], Tensor]) -> Callable[..., Two]:
    def body(q: Tensor, k: Tensor, v: Tensor) -> Two:
        w = step((q @ k.mT * 0.5).softmax(-1))
        return w @ v, w.clone()

    return body


for _name, _step in STEPS.items():
    add(f"weights {_name}", _with(_step))


@style
def dropout(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """The record has the weights before the dropout."""
    w = (q @ k.mT).softmax(-1)
    return functional.dropout(w, 0.25) @ v, w


@style
def differential_of_outputs(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """Two attentions, whose outputs are subtracted: as its version for flash attention."""
    (q1, q2), (k1, k2) = q.chunk(2, -1), k.chunk(2, -1)
    first, second = (q1 @ k1.mT).softmax(-1), (q2 @ k2.mT).softmax(-1)
    return first @ v - 0.4 * (second @ v), (first, second)


@style
def one_softmax_with_two_values(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """Weights that meet two values: features and positions, as in point clouds and Evoformer."""
    w = (q @ k.mT).softmax(-1)
    return w @ v + w @ k, w


@style
def a_softmax_of_a_softmax(q: Tensor, k: Tensor, v: Tensor) -> Two:
    w = (q @ k.mT).softmax(-1).mul(4).softmax(-1)
    return w @ v, w


@style
def weights_of_two_hops(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """w @ w @ v: what meets the values is a power of the weights."""
    w = (q @ k.mT).softmax(-1)
    w = w @ w
    return w @ v, w


@style
def slots(x: Tensor, context: Tensor) -> Two:
    """Slot attention: the slots compete for each input, and the weights of a slot are then normalised."""
    attention = (x @ context.mT * M**-0.5).softmax(dim=1) + 1e-8
    w = attention / attention.sum(dim=-1, keepdim=True)
    return w @ context, w[:, None]


@style
def softmax_over_the_queries(q: Tensor, k: Tensor, v: Tensor) -> Two:
    w = (q @ k.mT).softmax(-2)
    return w @ v, w


@style
def softmax_over_the_heads(q: Tensor, k: Tensor, v: Tensor) -> Two:
    w = (q @ k.mT).softmax(1)
    return w @ v, w


@style
def softmax_over_keys_of_all_heads(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """Keys of all heads in one softmax."""
    s = (q @ k.mT).transpose(1, 2).flatten(2)
    w = s.softmax(-1).view(B, Q, H, Q).transpose(1, 2)
    return w @ v, w


@style
class MultiHeadLatent(nn.Module):
    """DeepSeek: keys from a latent vector, with a rotary part that all heads share; absorbed projections."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(H, D, 4))

    def forward(self, q: Tensor, x: Tensor) -> Two:
        latent, rotary = x[..., :4], x[..., 4:8]
        q1, q2 = torch.einsum("bhqd,hdc->bhqc", q, self.up), q[..., :4]
        s = torch.einsum("bhqc,bkc->bhqk", q1, latent) + torch.einsum("bhqr,bkr->bhqk", q2, rotary)
        w = (s * D**-0.5).softmax(-1)
        return torch.einsum("bhqk,bkc->bhqc", w, latent), w


@style
def pooled_by_a_learned_query(x: Tensor) -> Two:
    """Attention pooling: the only query is a parameter."""
    query = nn.Parameter(torch.linspace(-1, 1, M))
    w = (x @ query).softmax(dim=-1)
    return (w.unsqueeze(-1) * x).sum(1), w[:, None, None]


@style
def vector_attention(x: Tensor) -> Two:
    """Point Transformer: weights for each channel, from differences of queries and keys."""
    w = (x[:, :, None] - x[:, None]).mul(0.5).softmax(dim=2)
    return torch.einsum("bijc,bjc->bic", w, x), w.permute(0, 3, 1, 2)
