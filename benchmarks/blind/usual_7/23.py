import math
from typing import Optional, Tuple

import torch
import torch.nn as nn


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def apply_rope(x, positions, theta=10000.0):
    d = x.size(-1)
    freqs = theta ** (-torch.arange(0, d, 2, device=x.device).float() / d)
    ang = positions[:, None].float() * freqs[None, :]
    cos, sin = ang.cos().to(x.dtype), ang.sin().to(x.dtype)
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1)


class MultiheadLatentAttention(nn.Module):
    """
    DeepSeek-V2 attention. Only the compressed kv latent goes into the cache, keys and values are expanded from it.

    Generation: ``out, cache = attn(prompt)`` and then ``out, cache = attn(token, cache)`` for every token.
    """

    def __init__(self, dim=64, n_heads=4, kv_lora_rank=32, nope_dim=16, rope_dim=8, v_dim=16):
        super().__init__()
        self.n_heads = n_heads
        self.nope_dim, self.rope_dim, self.v_dim = nope_dim, rope_dim, v_dim
        self.wq = nn.Linear(dim, n_heads * (nope_dim + rope_dim), bias=False)
        self.wkv_a = nn.Linear(dim, kv_lora_rank + rope_dim, bias=False)
        self.kv_norm = RMSNorm(kv_lora_rank)
        self.wkv_b = nn.Linear(kv_lora_rank, n_heads * (nope_dim + v_dim), bias=False)
        self.wo = nn.Linear(n_heads * v_dim, dim, bias=False)
        self.softmax_scale = (nope_dim + rope_dim) ** -0.5
        self.rank = kv_lora_rank

    def forward(self, x, cache: Optional[torch.Tensor] = None) -> Tuple[torch.Tensor, torch.Tensor]:
        B, S, _ = x.shape
        past = 0 if cache is None else cache.size(1)
        positions = torch.arange(past, past + S, device=x.device)

        q = self.wq(x).view(B, S, self.n_heads, -1).transpose(1, 2)
        q_nope, q_pe = q.split([self.nope_dim, self.rope_dim], dim=-1)
        q_pe = apply_rope(q_pe, positions)

        latent, k_pe = self.wkv_a(x).split([self.rank, self.rope_dim], dim=-1)
        latent = self.kv_norm(latent)
        k_pe = apply_rope(k_pe.unsqueeze(1), positions)
        if cache is not None:
            latent = torch.cat([cache, latent], dim=1)
        T = latent.size(1)

        kv = self.wkv_b(latent).view(B, T, self.n_heads, -1).transpose(1, 2)
        k_nope, v = kv.split([self.nope_dim, self.v_dim], dim=-1)
        k = torch.cat([k_nope, k_pe.expand(-1, self.n_heads, T, -1)], dim=-1)
        q = torch.cat([q_nope, q_pe], dim=-1)

        scores = torch.einsum("bhsd,bhtd->bhst", q, k) * self.softmax_scale
        visible = torch.arange(T, device=x.device)[None, :] <= positions[:, None]
        scores = scores.masked_fill(~visible, -math.inf)
        out = torch.einsum("bhst,bhtd->bhsd", scores.softmax(-1), v)
        return self.wo(out.transpose(1, 2).flatten(2)), latent
