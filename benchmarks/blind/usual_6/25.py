from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def apply_rotary(x, cos, sin):
    """x: (b, t, h, d); cos, sin: (t, d/2)"""
    cos, sin = cos[None, :, None, :], sin[None, :, None, :]
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)


class MultiHeadLatentAttention(nn.Module):
    """DeepSeek-V2 style MLA: the cache holds the compressed latent and the shared rotary key."""

    def __init__(
        self,
        dim: int = 128,
        num_heads: int = 4,
        kv_lora_rank: int = 32,
        qk_nope_head_dim: int = 16,
        qk_rope_head_dim: int = 8,
        v_head_dim: int = 16,
        max_seq_len: int = 512,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.rank, self.nope, self.rope, self.vd = kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim
        self.softmax_scale = (self.nope + self.rope) ** -0.5

        self.wq = nn.Linear(dim, num_heads * (self.nope + self.rope), bias=False)
        self.wkv_a = nn.Linear(dim, self.rank + self.rope, bias=False)
        self.kv_norm = RMSNorm(self.rank)
        self.wkv_b = nn.Linear(self.rank, num_heads * (self.nope + self.vd), bias=False)
        self.wo = nn.Linear(num_heads * self.vd, dim, bias=False)

        inv = 10000.0 ** (-torch.arange(0, self.rope, 2).float() / self.rope)
        ang = torch.outer(torch.arange(max_seq_len).float(), inv)
        self.register_buffer("cos", ang.cos(), persistent=False)
        self.register_buffer("sin", ang.sin(), persistent=False)

    def forward(
        self,
        x: torch.Tensor,
        cache: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
    ):
        b, t, _ = x.shape
        start = 0 if cache is None else cache[0].size(1)

        q = self.wq(x).view(b, t, self.num_heads, self.nope + self.rope)
        q_nope, q_pe = q.split([self.nope, self.rope], dim=-1)
        q_pe = apply_rotary(q_pe, self.cos[start:start + t], self.sin[start:start + t])

        latent, k_pe = self.wkv_a(x).split([self.rank, self.rope], dim=-1)
        latent = self.kv_norm(latent)
        k_pe = apply_rotary(k_pe.unsqueeze(2), self.cos[:t], self.sin[:t]).squeeze(2)

        if cache is not None:
            latent = torch.cat([cache[0], latent], dim=1)
            k_pe = torch.cat([cache[1], k_pe], dim=1)
        total = latent.size(1)

        kv = self.wkv_b(latent).view(b, total, self.num_heads, self.nope + self.vd)
        k_nope, v = kv.split([self.nope, self.vd], dim=-1)

        scores = torch.einsum("bqhd,bkhd->bhqk", q_nope, k_nope)
        scores = (scores + torch.einsum("bqhd,bkd->bhqk", q_pe, k_pe)) * self.softmax_scale
        visible = torch.ones(t, total, dtype=torch.bool, device=x.device).tril(diagonal=start)
        scores = scores.masked_fill(~visible, float("-inf"))
        attn = F.softmax(scores, dim=-1, dtype=torch.float32).type_as(x)

        out = torch.einsum("bhqk,bkhd->bqhd", attn, v).flatten(2)
        return self.wo(out), (latent, k_pe)
