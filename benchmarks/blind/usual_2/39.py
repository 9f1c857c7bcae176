from typing import Optional, Tuple

import torch
import torch.nn as nn


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rotary(x: torch.Tensor, start: int, theta: float = 10000.0) -> torch.Tensor:
    """Rotate x (batch, seq, heads, rope_dim), whose first position is `start`."""
    d = x.shape[-1]
    freqs = 1.0 / (theta ** (torch.arange(0, d, 2, device=x.device).float() / d))
    t = torch.arange(start, start + x.shape[1], device=x.device).float()
    angle = torch.outer(t, freqs)[None, :, None, :]
    x1, x2 = x.float().chunk(2, dim=-1)
    y = torch.cat((x1 * angle.cos() - x2 * angle.sin(), x1 * angle.sin() + x2 * angle.cos()), dim=-1)
    return y.type_as(x)


class MLA(nn.Module):
    """Multi-head latent attention (DeepSeek-V2) with causal mask.

    The cache is a pair: the latents (batch, seq, kv_lora_rank) and the shared rotary key
    (batch, seq, 1, qk_rope_head_dim).
    """

    def __init__(self, dim: int = 128, n_heads: int = 4, kv_lora_rank: int = 32, qk_nope_head_dim: int = 32,
                 qk_rope_head_dim: int = 16, v_head_dim: int = 32):
        super().__init__()
        self.n_heads = n_heads
        self.kv_lora_rank = kv_lora_rank
        self.qk_nope_head_dim = qk_nope_head_dim
        self.qk_rope_head_dim = qk_rope_head_dim
        self.v_head_dim = v_head_dim
        self.qk_head_dim = qk_nope_head_dim + qk_rope_head_dim
        self.softmax_scale = self.qk_head_dim ** -0.5

        self.wq = nn.Linear(dim, n_heads * self.qk_head_dim, bias=False)
        self.wkv_a = nn.Linear(dim, kv_lora_rank + qk_rope_head_dim, bias=False)
        self.kv_norm = RMSNorm(kv_lora_rank)
        self.wkv_b = nn.Linear(kv_lora_rank, n_heads * (qk_nope_head_dim + v_head_dim), bias=False)
        self.wo = nn.Linear(n_heads * v_head_dim, dim, bias=False)

    def forward(self, x: torch.Tensor, cache: Optional[Tuple[torch.Tensor, torch.Tensor]] = None):
        bsz, seqlen, _ = x.shape
        past = 0 if cache is None else cache[0].shape[1]

        q = self.wq(x).view(bsz, seqlen, self.n_heads, self.qk_head_dim)
        q_nope, q_pe = q.split([self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)
        q = torch.cat([q_nope, rotary(q_pe, past)], dim=-1)

        latent, k_pe = self.wkv_a(x).split([self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
        latent = self.kv_norm(latent)
        k_pe = k_pe.unsqueeze(2)
        if cache is not None:
            latent = torch.cat([cache[0], latent], dim=1)
            k_pe = torch.cat([cache[1], k_pe], dim=1)
        k_pe = rotary(k_pe, 0)
        new_cache = (latent, k_pe)

        total = past + seqlen
        kv = self.wkv_b(latent).view(bsz, total, self.n_heads, self.qk_nope_head_dim + self.v_head_dim)
        k_nope, v = kv.split([self.qk_nope_head_dim, self.v_head_dim], dim=-1)
        k = torch.cat([k_nope, k_pe.expand(-1, -1, self.n_heads, -1)], dim=-1)

        scores = torch.einsum("bshd,bthd->bhst", q, k) * self.softmax_scale
        mask = torch.ones(seqlen, total, dtype=torch.bool, device=x.device).triu(past + 1)
        scores = scores.masked_fill(mask, float("-inf"))
        probs = scores.softmax(dim=-1, dtype=torch.float32).type_as(x)
        out = torch.einsum("bhst,bthd->bshd", probs, v)
        return self.wo(out.reshape(bsz, seqlen, -1)), new_cache
