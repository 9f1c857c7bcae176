"""One attention in several pieces: loops, chunks, windows, blocks, low-rank factors."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tests.capture.styles.style import CAUSAL, B, D, H, Q, style

Two = tuple[Tensor, Any]


@style
def loop_over_heads(q: Tensor, k: Tensor, v: Tensor) -> Two:
    ws = [(q[:, h] @ k[:, h].mT).softmax(-1) for h in range(H)]
    return torch.stack([w @ v[:, h] for h, w in enumerate(ws)], 1), torch.stack(ws, 1)


@style
def loop_over_chunks_by_sdpa(q: Tensor, k: Tensor, v: Tensor) -> Two:
    outs = [functional.scaled_dot_product_attention(chunk, k, v) for chunk in q.split(3, dim=2)]
    return torch.cat(outs, 2), lambda: (q @ k.mT * D**-0.5).softmax(-1)


@style
def sliced_attention(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """As in diffusers: slices of batch x heads, written into a buffer."""
    q, k, v = (x.reshape(B * H, Q, D) for x in (q, k, v))
    out, ws = torch.zeros(B * H, Q, D), []
    for i in range(0, B * H, 2):
        ws.append(torch.baddbmm(torch.empty(2, Q, Q), q[i : i + 2], k[i : i + 2].mT, beta=0, alpha=0.3).softmax(-1))
        out[i : i + 2] = torch.bmm(ws[-1], v[i : i + 2])
    return out, torch.cat(ws).view(B, H, Q, Q)


@style
def packed_sequences(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """Variable lengths in one row: a loop over the lengths, as flash_attn_varlen is replaced on a CPU."""
    w, outs = torch.zeros(1, H, Q, Q), []
    for start, end in ((0, 2), (2, Q)):
        part = (q[:1, :, start:end] @ k[:1, :, start:end].mT).softmax(-1)
        outs.append(part @ v[:1, :, start:end])
        w[:, :, start:end, start:end] = part
    return torch.cat(outs, 2), w


def _windows(x: Tensor, value: float) -> Tensor:
    """[B, H, Q, D] -> [B, H, Q, 3, D]: each position with its neighbours."""
    return functional.pad(x, (0, 0, 1, 1), value=value).unfold(2, 3, 1).transpose(-1, -2)


def _banded(w: Tensor) -> Tensor:
    """[B, H, Q, 3] -> [B, H, Q, Q]"""
    full = torch.zeros(B, H, Q, Q)
    for i in range(Q):
        for j in range(max(0, i - 1), min(Q, i + 2)):
            full[:, :, i, j] = w[:, :, i, j - i + 1]
    return full


@style
def windows_by_unfold(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """Each query has keys of its own: neighbourhood attention, local-attention."""
    outside = _windows(torch.ones(B, H, Q, 1), 0.0).squeeze(-1) == 0
    s = (q.unsqueeze(-2) @ _windows(k, 0.0).mT).squeeze(-2).masked_fill(outside, -math.inf)
    w = s.softmax(-1)
    out = (w.unsqueeze(-2) @ _windows(v, 0.0)).squeeze(-2)
    return out, [_banded(w), w.transpose(1, 2).reshape(B * Q, H, 1, 3)]


@style
def nystrom(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """Nyströmformer: three softmaxes with landmarks, one of them inverted; their product stands for the weights."""
    ql, kl = q.view(B, H, 2, 3, D).mean(-2), k.view(B, H, 2, 3, D).mean(-2)
    one, two, three = (q @ kl.mT).softmax(-1), (ql @ kl.mT).softmax(-1), (ql @ k.mT).softmax(-1)
    inverse = torch.linalg.pinv(two)
    return (one @ inverse) @ (three @ v), one @ inverse @ three


@style
def the_largest_keys_alone(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """topk of the scores, a softmax of these, and their values gathered."""
    top, at = (q @ k.mT).topk(3, dim=-1)
    part = top.softmax(-1)
    out = torch.einsum(
        "bhqk,bhqkd->bhqd",
        part,
        v[:, :, None].expand(-1, -1, Q, -1, -1).gather(3, at[..., None].expand(-1, -1, -1, -1, D)),
    )
    return out, [torch.zeros(B, H, Q, Q).scatter(-1, at, part), part.transpose(1, 2).reshape(B * Q, H, 1, 3)]


@style
def the_largest_keys_scattered(q: Tensor, k: Tensor, v: Tensor) -> Two:
    top, at = (q @ k.mT).topk(3, dim=-1)
    w = torch.full((B, H, Q, Q), -math.inf).scatter(-1, at, top).softmax(-1)
    return w @ v, w


@style
def summed_over_edges(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """As in graph libraries: a score for each edge, a softmax by scatter."""
    to, of = CAUSAL.nonzero().unbind(1)
    e = (q[0, 0, to] * k[0, 0, of]).sum(-1).exp()
    total = torch.zeros(Q).index_add(0, to, e)
    w = e / total[to]
    out = torch.zeros(Q, D).index_add(0, to, w[:, None] * v[0, 0, of])
    return out, torch.zeros(Q, Q).index_put((to, of), w)[None, None]
