from typing import Optional, Tuple

import torch
import torch.nn as nn


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x, cos, sin):
    # x: (b, t, ..., d); pairs are the even and odd channels
    x1, x2 = x[..., 0::2], x[..., 1::2]
    return torch.stack((x1 * cos - x2 * sin, x1 * sin + x2 * cos), dim=-1).flatten(-2)


class LatentAttention(nn.Module):
    """Multi-head latent attention, always in its absorbed form.

    Only the compressed latent and one rotary key that all heads share are cached. The key
    up-projection is folded into the query, the value up-projection into the output, so that
    full keys and values never exist.
    """

    def __init__(self, dim=64, num_heads=4, q_rank=32, kv_rank=24, nope_dim=16, rope_dim=8,
                 v_dim=16, base=10000.0):
        super().__init__()
        self.h = num_heads
        self.nope_dim, self.rope_dim, self.v_dim, self.kv_rank = nope_dim, rope_dim, v_dim, kv_rank
        self.scale = (nope_dim + rope_dim) ** -0.5

        self.q_a = nn.Linear(dim, q_rank, bias=False)
        self.q_norm = RMSNorm(q_rank)
        self.q_b = nn.Linear(q_rank, num_heads * (nope_dim + rope_dim), bias=False)
        self.kv_a = nn.Linear(dim, kv_rank + rope_dim, bias=False)
        self.kv_norm = RMSNorm(kv_rank)
        self.kv_b = nn.Linear(kv_rank, num_heads * (nope_dim + v_dim), bias=False)
        self.out = nn.Linear(num_heads * v_dim, dim, bias=False)

        inv = 1.0 / base ** (torch.arange(0, rope_dim, 2).float() / rope_dim)
        self.register_buffer("inv_freq", inv, persistent=False)

    def forward(self, x, cache: Optional[Tuple[torch.Tensor, torch.Tensor]] = None):
        b, t, _ = x.shape
        past = 0 if cache is None else cache[0].shape[1]

        pos = torch.arange(past, past + t, device=x.device).float()
        ang = torch.outer(pos, self.inv_freq.float())
        cos, sin = ang.cos().to(x.dtype), ang.sin().to(x.dtype)

        q = self.q_b(self.q_norm(self.q_a(x))).view(b, t, self.h, -1)
        q_nope, q_pe = q.split([self.nope_dim, self.rope_dim], dim=-1)
        q_pe = rotate(q_pe, cos[:, None], sin[:, None])

        latent, k_pe = self.kv_a(x).split([self.kv_rank, self.rope_dim], dim=-1)
        latent = self.kv_norm(latent)
        k_pe = rotate(k_pe, cos, sin)
        if cache is not None:
            latent = torch.cat((cache[0], latent), dim=1)
            k_pe = torch.cat((cache[1], k_pe), dim=1)

        w = self.kv_b.weight.view(self.h, self.nope_dim + self.v_dim, self.kv_rank)
        w_uk, w_uv = w.split([self.nope_dim, self.v_dim], dim=1)

        q_lat = torch.einsum("bthn,hnr->bthr", q_nope, w_uk)
        scores = torch.einsum("bthr,bsr->bhts", q_lat, latent)
        scores = scores + torch.einsum("bthp,bsp->bhts", q_pe, k_pe)
        scores = scores * self.scale

        s = latent.shape[1]
        future = torch.ones(t, s, dtype=torch.bool, device=x.device).triu(1 + past)
        scores = scores.masked_fill(future, float("-inf"))
        probs = scores.float().softmax(dim=-1).to(x.dtype)

        o = torch.einsum("bhts,bsr->bthr", probs, latent)
        o = torch.einsum("bthr,hvr->bthv", o, w_uv).reshape(b, t, -1)
        return self.out(o), (latent, k_pe)
