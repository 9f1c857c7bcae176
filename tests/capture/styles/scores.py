"""What stands between the product and the softmax: masks, biases, temperatures, positions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.capture.styles.style import BIAS, CAUSAL, REAL, B, D, H, M, Q, add, style

Two = tuple[Tensor, Any]


def _assigned(s: Tensor, where: Tensor) -> Tensor:
    s[where] = -math.inf
    return s


STEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "filled": lambda s: s.masked_fill(~CAUSAL, -math.inf),
    "filled with a tensor": lambda s: s.masked_fill(~CAUSAL, torch.tensor(-1e9)),
    "filled in place": lambda s: s.masked_fill_(~CAUSAL, -math.inf),
    "filled where an int mask is 0": lambda s: s.masked_fill(CAUSAL.int() == 0, -math.inf),
    "where of many": lambda s: torch.where(CAUSAL, s, torch.full_like(s, -1e9)),
    "where not": lambda s: torch.where(~CAUSAL, -1e9, s),
    "where, as a method": lambda s: s.where(CAUSAL, torch.tensor(-1e9)),
    "added": lambda s: s + torch.zeros(Q, Q).masked_fill(~CAUSAL, -math.inf),
    "assigned": lambda s: _assigned(s, (~CAUSAL).expand_as(s)),
    "assigned with a mask of fewer dimensions": lambda s: _assigned(s.squeeze(), (~CAUSAL).expand_as(s)),
    "a bias": lambda s: s + BIAS,
    "a bias times a number": lambda s: torch.add(s, BIAS, alpha=0.5),
    "a bias, then scaled": lambda s: (s + BIAS) * 0.5,
    "temperature of each head": lambda s: s * torch.linspace(0.5, 2, H).view(H, 1, 1),
    "temperature of each head, after a bias": lambda s: (s + BIAS) / torch.linspace(0.5, 2, H).view(H, 1, 1),
    "temperature of each row": lambda s: s * torch.linspace(0.5, 2, Q).view(Q, 1),
    "softcap": lambda s: 0.8 * torch.tanh(s / 0.8),
    "softcap and mask": lambda s: (torch.tanh(s / 0.8) * 0.8).masked_fill(~CAUSAL, -math.inf),
    "less its maximum": lambda s: s - s.amax(-1, keepdim=True),
    "clamped where nothing is": lambda s: s.clamp(min=-1e4),
    "a column of biases": lambda s: s + torch.linspace(-1, 1, Q).view(1, 1, 1, Q),
    "no head is seen by the padding": lambda s: s.masked_fill(~REAL[:, None, :, None], -math.inf),
    # A mask by numbers: w * b - 1e4 * (1 - b), as in OpenAI's GPT and GPT-2.
    "times a mask, less a number": lambda s: s * CAUSAL.float() - 1e4 * (1 - CAUSAL.float()),
    "a mask multiplied in": lambda s: s * CAUSAL,
    "a mask that weighs the keys": lambda s: s + torch.log(torch.linspace(0.1, 1, Q)),
    "a minimum twice": lambda s: s + 2 * torch.zeros(Q, Q).masked_fill(~CAUSAL, torch.finfo(s.dtype).min),
    "two masks that add up to -inf": lambda s: (
        s.masked_fill(~CAUSAL, torch.finfo(s.dtype).min)
        + torch.zeros(B, 1, 1, Q).masked_fill(REAL[:, None, None].flip(-1).logical_not(), torch.finfo(s.dtype).min)
    ),
    "a maximum with a mask": lambda s: torch.maximum(s, torch.tensor(-1e30)).masked_fill(~CAUSAL, -1e30),
    "masked by addcmul": lambda s: torch.addcmul(s, torch.tensor(-1e9), (~CAUSAL).float()),
    "masked by a product of log": lambda s: s + CAUSAL.float().log().clamp(min=torch.finfo(s.dtype).min),
    "copied into a buffer": lambda s: torch.empty_like(s).copy_(s),
    "index_fill": lambda s: s.index_fill(-1, torch.tensor([Q - 1]), -math.inf),
    "masked_scatter": lambda s: s.masked_scatter(~CAUSAL, torch.full((B * H * Q * Q,), -math.inf)),
    "relu": lambda s: functional.relu(s),
    "log1p of the scores": lambda s: torch.log1p(s.relu()),
    "normalised scores": lambda s: functional.layer_norm(s, (Q,)),
    "biased and transposed": lambda s: (s + BIAS).mT,
    "times a bias of cells": lambda s: s * (1 + BIAS),
    "scores under a mask": lambda s: torch.where(CAUSAL, s, BIAS),
    "a fill that forbids nothing": lambda s: s.masked_fill(~CAUSAL, -2.0),
    "a score assigned": lambda s: (s.__setitem__((..., 0), 1.0), s)[1],
    "met again": lambda s: s + torch.cumsum(s, -1),
    "a mask turned round": lambda s: (s + torch.zeros(Q, Q).masked_fill(CAUSAL, 1e9)) * -1,
    "filled through a view": lambda s: (s.view(B * H, Q, Q).masked_fill_(~CAUSAL, -1e9), s)[1],
    "several fills of a whole row": lambda s: s.masked_fill(~CAUSAL, -1e9).masked_fill(
        (torch.arange(Q) == 2)[:, None], -1e4
    ),
    "clamped": lambda s: s.clamp(-0.1, 0.1),
    "clamped by maximum": lambda s: torch.maximum(s, torch.zeros(())),
    "changed unseen": lambda s: (s.detach().numpy().__imul__(2), s)[1],
}


def _with(step: Callable[[Tensor], Tensor]) -> Callable[..., Two]:
    def body(q: Tensor, k: Tensor, v: Tensor) -> Two:
        w = step(q @ k.mT * 0.9).softmax(-1)
        return w @ v, w.clone()

    return body


for _name, _step in STEPS.items():
    add(f"scores {_name}", _with(_step))


@style
def learned_sinks(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """As in gpt-oss: a column beside the scores, removed after the softmax."""
    column = torch.linspace(-2, 2, H).view(1, H, 1, 1).expand(B, H, Q, 1)
    w = torch.cat([(q @ k.mT).masked_fill(~CAUSAL, -math.inf), column], dim=-1).softmax(-1)[..., :-1]
    return w @ v, w


@style
def a_zero_key(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """add_zero_attn, and softmax-plus-one: a score of 0 takes part, and has no value."""
    w = functional.pad(q @ k.mT, (1, 0)).softmax(-1)[..., 1:]
    return w @ v, w


@style
def softmax_plus_one(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """exp(s) / (1 + Σ exp(s))."""
    s = q @ k.mT
    e = (s - s.amax(-1, keepdim=True).clamp(min=0)).exp()
    w = e / (e.sum(-1, keepdim=True) + (-s.amax(-1, keepdim=True).clamp(min=0)).exp())
    return w @ v, w


@style
def a_sink_that_has_a_value(q: Tensor, k: Tensor, v: Tensor) -> Two:
    w = torch.cat([q @ k.mT, torch.zeros(B, H, Q, 1)], -1).softmax(-1)
    return w @ torch.cat([v, v[:, :, :1]], 2), w


@style
def two_columns_beside_the_keys(q: Tensor, k: Tensor, v: Tensor) -> Two:
    w = torch.cat([q @ k.mT, torch.zeros(B, H, Q, 2)], -1).softmax(-1)[..., :-2]
    return w @ v, w


@style
def scores_beside_a_part_of_themselves(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """The normaliser counts three keys twice."""
    w = torch.cat([(q @ k.mT)[..., :3], q @ k.mT], -1).softmax(-1)[..., 3:]
    return w @ v, w


@style
def scores_concatenated(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """As in Pegasus-X: local and global keys, each with a product of its own, under one softmax."""
    w = torch.cat([q @ k[:, :, :2].mT, q @ k[:, :, 2:].mT], dim=-1).softmax(-1)
    return w[..., :2] @ v[:, :, :2] + w[..., 2:] @ v[:, :, 2:], w


@style
def queries_changed_before_the_softmax(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """What is changed is the queries, after they were read."""
    s = q @ k.mT
    q.mul_(2)
    w = s.softmax(-1)
    return w @ v, w


@style
def shaw(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """Relative positions of Shaw et al.: the scores of a query with embeddings of distances, and such values."""
    distances = (torch.arange(Q)[None] - torch.arange(Q)[:, None]).clamp(-3, 3) + 3
    of_keys, of_values = torch.linspace(-1, 1, 2 * 7 * D).view(2, 7, D)
    s = q @ k.mT + torch.einsum("bhid,ijd->bhij", q, of_keys[distances])
    w = (s / D**0.5).softmax(-1)
    return w @ v + torch.einsum("bhij,ijd->bhid", w, of_values[distances]), w


@style
def decomposed_relative_positions(x: Tensor) -> Two:
    """As in ViTDet and SAM: biases of rows and columns of the image are added in a view with 5 dimensions."""
    height, width = 2, 3
    q, k, v = (x.reshape(B, Q, H, D).transpose(1, 2).reshape(B * H, Q, D) * c for c in (1.0, 0.7, 1.3))
    s = (q * D**-0.5) @ k.transpose(-2, -1)
    of_rows = torch.linspace(-1, 1, height * height * D).view(height, height, D)
    of_cols = torch.linspace(1, -1, width * width * D).view(width, width, D)
    r = q.reshape(B * H, height, width, D)
    rows, cols = torch.einsum("bhwc,hkc->bhwk", r, of_rows), torch.einsum("bhwc,wkc->bhwk", r, of_cols)
    s = (s.view(-1, height, width, height, width) + rows[:, :, :, :, None] + cols[:, :, :, None, :]).view(-1, Q, Q)
    w = s.softmax(dim=-1)
    return (w @ v).view(B, H, Q, D), w.view(B, H, Q, Q)


@style
class Bahdanau(nn.Module):
    """The same for one step of a decoder, as in the tutorial of PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.wa, self.ua, self.va = nn.Linear(M, M), nn.Linear(M, M), nn.Linear(M, 1)

    def forward(self, x: Tensor, context: Tensor) -> Two:
        scores = self.va(torch.tanh(self.wa(x[:, :1]) + self.ua(context))).squeeze(2).unsqueeze(1)
        w = functional.softmax(scores, dim=-1)
        return torch.bmm(w, context), w[:, None]


@style
def graph_attention(x: Tensor) -> Two:
    """GAT: a · [q, k] is a sum of two numbers, under a leaky ReLU, at the edges of a graph."""
    of_queries, of_keys = x @ torch.linspace(-1, 1, M)[:, None], x @ torch.linspace(1, -1, M)[:, None]
    s = functional.leaky_relu(of_queries + of_keys.mT, 0.2)
    w = torch.where(CAUSAL, s, -9e15).softmax(-1)
    return w @ x, w[:, None]


@style
def windows_of_swin(image: Tensor) -> Two:
    """Rolled, cut into windows of 2 x 2, a bias and a mask for each window; each is an example."""

    def windows(x: Tensor) -> Tensor:  # [B, 6, 4, M] -> [6 B, 4, M]
        return x.view(-1, 3, 2, 2, 2, x.shape[-1]).transpose(2, 3).reshape(-1, 4, x.shape[-1])

    x = windows(image.permute(0, 2, 3, 1).roll((-1, -1), (1, 2)))
    q, k, v = (x.view(-1, 4, H, D).transpose(1, 2) for _ in range(3))
    regions = windows(torch.tensor([0, 0, 0, 0, 1, 2])[:, None].mul(3).add(torch.tensor([0, 0, 1, 2]))[None, ..., None])
    mask = torch.where(regions == regions.mT, 0.0, -100.0)
    s = q * D**-0.5 @ k.transpose(-2, -1) + torch.linspace(-1, 1, H * 16).view(1, H, 4, 4)
    s = s.view(B, 6, H, 4, 4) + mask.unsqueeze(1).unsqueeze(0)
    w = nn.Softmax(dim=-1)(s.view(-1, H, 4, 4))
    return (w @ v).transpose(1, 2), w
