"""One attention in several pieces: loops, chunks, windows, blocks, low-rank factors."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.capture.styles.style import CAUSAL, B, D, H, Q, style

Two = tuple[Tensor, Any]


@style
def loop_over_heads(q: Tensor, k: Tensor, v: Tensor) -> Two:
    ws = [(q[:, h] @ k[:, h].mT).softmax(-1) for h in range(H)]
    return torch.stack([w @ v[:, h] for h, w in enumerate(ws)], 1), torch.stack(ws, 1)


@style
def loop_over_examples(q: Tensor, k: Tensor, v: Tensor) -> Two:
    outs, ws = [], []
    for qb, kb, vb in zip(q, k, v, strict=True):
        ws.append((qb @ kb.mT).softmax(-1))
        outs.append(ws[-1] @ vb)
    return torch.stack(outs), torch.stack(ws)


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


@style
def blocks(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """Blocks of 2 as one more dimension; each is an example of its own, as the windows of Swin."""
    q, k, v = (x.view(B, H, 3, 2, D) for x in (q, k, v))
    w = (q @ k.mT).softmax(-1)
    return (w @ v).view(B, H, Q, D), w.transpose(1, 2).reshape(B * 3, H, 2, 2)


@style
def local_blocks_of_t5(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """LongT5: each block of queries has the keys of three blocks; padded, stacked, a bias in 5 dimensions."""
    queries = q.transpose(1, 2).reshape(B, 3, 2, H, D)
    keys, values = (
        torch.cat(
            [
                functional.pad(x.transpose(1, 2).reshape(B, 3, 2, H, D), (0, 0) * 3 + (1, 1))[:, i : i + 3]
                for i in range(3)
            ],
            dim=2,
        )
        for x in (k, v)
    )
    s = torch.einsum("...qhd,...khd->...hqk", queries, keys) + torch.linspace(-1, 1, H * 12).view(1, 1, H, 2, 6)
    real = functional.pad(torch.ones(3, 2, dtype=torch.bool), (0, 0, 1, 1)).unfold(0, 3, 1).transpose(1, 2).flatten(1)
    s = s + torch.where(real, 0.0, -1e10)[None, :, None, None]
    w = functional.softmax(s.float(), dim=-1).type_as(s)
    out = torch.einsum("...hqk,...khd->...qhd", w, values)
    full = torch.zeros(B, H, Q, Q)
    for i in range(3):
        for j in range(max(0, i - 1), min(3, i + 2)):
            part = w[:, i, :, :, 2 * (j - i + 1) : 2 * (j - i + 2)]
            full[:, :, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2] = part
    return out.reshape(B, Q, H, D), [full, w.flatten(0, 1)]


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
def longformer(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """Pad and chunk: overlapping chunks by as_strided, diagonals to columns by pad and view, and back."""
    one, heads = 2, B * H  # the window: 2 positions to each side
    q, k, v = (x.reshape(heads, Q, D) for x in (q, k, v))

    def overlapping(x: Tensor) -> Tensor:
        x = x.reshape(heads, Q // (2 * one) if Q % (2 * one) == 0 else 1, -1, D)
        size, stride = list(x.size()), list(x.stride())
        size[1], size[2], stride[1] = Q // one - 1, 2 * one, one * D
        return x.as_strided(size, [stride[0], stride[1], D, 1])

    s = torch.einsum("bcxd,bcyd->bcxy", overlapping(q), overlapping(k))  # [heads, chunks, 2 one, 2 one]
    s = functional.pad(s, (0, 0, 0, 1)).view(heads, Q // one - 1, 2 * one, 2 * one + 1)
    band = s.new_zeros(heads, Q // one, one, 2 * one + 1)
    band[:, :-1, :, one:] = s[:, :, :one, : one + 1]
    band[:, -1, :, one:] = s[:, -1, one:, : one + 1]
    band[:, 1:, :, :one] = s[:, :, -(one + 1) : -1, one + 1 :]
    band[:, 0, 1:one, 1:one] = s[:, 0, : one - 1, 1 - one :]
    band = band.view(heads, Q, 2 * one + 1)
    at = torch.arange(Q)[:, None] + torch.arange(-one, one + 1)
    w = band.masked_fill((at < 0) | (at >= Q), -math.inf).softmax(-1)
    padded = functional.pad(v, (0, 0, one, one), value=-1)
    chunks = padded.unfold(1, 2 * one + 1, 1)  # the values in the window of each query
    full = torch.zeros(heads, Q, Q + 2 * one)
    for i in range(Q):
        full[:, i, i : i + 2 * one + 1] = w[:, i]
    windows = w.view(B, H, Q, -1).transpose(1, 2).reshape(B * Q, H, 1, -1)
    return torch.einsum("bqk,bqdk->bqd", w, chunks), [full[:, :, one:-one].reshape(B, H, Q, Q), windows]


@style
def big_bird(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """Block-sparse: the first and last block attend to everything, the middle one to blocks that are gathered."""
    (q1, q2, q3), (k1, k2, _), (v1, v2, _) = (x.split(2, dim=2) for x in (q, k, v))
    first = torch.einsum("bhqd,bhkd->bhqk", q1, k).softmax(-1)
    middle = torch.cat([q2 @ k1.mT, q2 @ k2.mT], dim=-1).softmax(-1)
    last = torch.einsum("bhqd,bhkd->bhqk", q3, k).softmax(-1)
    out = torch.cat(
        [first @ v, middle[..., :2] @ v1 + torch.einsum("bhqk,bhkd->bhqd", middle[..., 2:], v2), last @ v], dim=2
    )
    return out, torch.cat([first, functional.pad(middle, (0, 2)), last], dim=2)


@style
def nystrom(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """Nyströmformer: three softmaxes with landmarks, one of them inverted; their product stands for the weights."""
    ql, kl = q.view(B, H, 2, 3, D).mean(-2), k.view(B, H, 2, 3, D).mean(-2)
    one, two, three = (q @ kl.mT).softmax(-1), (ql @ kl.mT).softmax(-1), (ql @ k.mT).softmax(-1)
    inverse = torch.linalg.pinv(two)
    return (one @ inverse) @ (three @ v), one @ inverse @ three


@style
def linformer(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """Keys and values are projected along the sequence."""
    project = torch.linspace(-1, 1, 3 * Q).view(3, Q)
    k, v = torch.einsum("kn,bhnd->bhkd", project, k), torch.einsum("kn,bhnd->bhkd", project, v)
    w = torch.einsum("bhnd,bhkd->bhnk", q, k).softmax(dim=-1)
    return torch.einsum("bhnk,bhkd->bhnd", w, v), w


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


@style
def chunked_prefill(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """Two chunks of a prompt with a cache, in one call of the module."""
    keys, values, outs, ws = k[:, :, :0], v[:, :, :0], [], []
    for start, end in ((0, 4), (4, Q)):
        keys, values = torch.cat([keys, k[:, :, start:end]], 2), torch.cat([values, v[:, :, start:end]], 2)
        s = q[:, :, start:end] @ keys.mT
        w = s.masked_fill(~CAUSAL[start:end, :end], -math.inf).softmax(-1)
        outs.append(w @ values)
        ws.append(functional.pad(w, (0, Q - end)))
    return torch.cat(outs, 2), torch.cat(ws, 2)


@style
def keys_of_each_query(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """Memorizing Transformers: keys that were looked up for each query, by einsum."""
    at = torch.stack([(torch.arange(Q) + 2 * i) % Q for i in range(3)], -1)
    w = torch.einsum("bhid,bhijd->bhij", q, k[:, :, at]).softmax(-1)
    full = torch.zeros(B, H, Q, Q).scatter(-1, at.expand(B, H, Q, 3), w)
    return torch.einsum("bhij,bhijd->bhid", w, v[:, :, at]), [full, w.transpose(1, 2).reshape(B * Q, H, 1, 3)]


@style
class PrefillWithACache(nn.Module):
    """A prompt in two chunks and one more token: three calls of the layer, one sequence."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.num_heads = H
            self.cache: list[Tensor] = []

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Two:
            past = [torch.cat([old, new], 2) for old, new in zip(self.cache, (k, v), strict=False)] or [k, v]
            self.cache = past
            keys, values = past
            s = q @ keys.mT
            w = s.masked_fill(~CAUSAL[: keys.shape[2]][-q.shape[2] :, : keys.shape[2]], -math.inf).softmax(-1)
            return w @ values, functional.pad(w, (0, Q - keys.shape[2]))

    def __init__(self) -> None:
        super().__init__()
        self.layer = self.Layer()

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Two:
        self.layer.cache = []
        with torch.no_grad():
            steps = [self.layer(*(x[:, :, a:b] for x in (q, k, v))) for a, b in ((0, 3), (3, 5), (5, Q))]
        return torch.cat([out for out, _ in steps], 2), torch.cat([w for _, w in steps], 2)
