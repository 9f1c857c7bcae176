from typing import Optional, Tuple

import torch
import torch.nn as nn


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


def apply_rotary(x, positions, base=10000.0):
    """x: (B, T, H, D), positions: (T,). Rotates neighbouring pairs."""
    d = x.size(-1)
    inv = base ** (-torch.arange(0, d, 2, device=x.device).float() / d)
    angle = positions.float()[:, None] * inv[None, :]
    cos = angle.cos()[None, :, None, :]
    sin = angle.sin()[None, :, None, :]
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)


class MultiHeadLatentAttention(nn.Module):
    """Multi-head latent attention (DeepSeek-V2). The cache holds the compressed key/value latent and
    the decoupled rotary key, which is shared by the heads.

    Returns the output and the cache to hand to the next call.
    """

    def __init__(self, dim=64, n_heads=4, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16):
        super().__init__()
        self.n_heads = n_heads
        self.kv_lora_rank = kv_lora_rank
        self.nope = qk_nope_head_dim
        self.rope = qk_rope_head_dim
        self.v_head_dim = v_head_dim
        self.softmax_scale = (qk_nope_head_dim + qk_rope_head_dim) ** -0.5
        self.wq = nn.Linear(dim, n_heads * (self.nope + self.rope), bias=False)
        self.wkv_a = nn.Linear(dim, kv_lora_rank + self.rope, bias=False)
        self.kv_norm = RMSNorm(kv_lora_rank)
        self.wkv_b = nn.Linear(kv_lora_rank, n_heads * (self.nope + v_head_dim), bias=False)
        self.wo = nn.Linear(n_heads * v_head_dim, dim, bias=False)

    def forward(self, x, cache: Optional[Tuple[torch.Tensor, torch.Tensor]] = None):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.n_heads, self.nope + self.rope)
        q_nope, q_pe = q.split([self.nope, self.rope], dim=-1)

        latent, k_pe = self.wkv_a(x).split([self.kv_lora_rank, self.rope], dim=-1)
        latent = self.kv_norm(latent)
        k_pe = k_pe.unsqueeze(2)
        if cache is not None:
            latent = torch.cat([cache[0], latent], dim=1)
            k_pe = torch.cat([cache[1], k_pe], dim=1)
        s = latent.size(1)

        positions = torch.arange(s, device=x.device)
        q_pe = apply_rotary(q_pe, positions[s - t:])
        k_pe = apply_rotary(k_pe, positions)

        kv = self.wkv_b(latent).view(b, s, self.n_heads, self.nope + self.v_head_dim)
        k_nope, v = kv.split([self.nope, self.v_head_dim], dim=-1)
        scores = torch.einsum("bthd,bshd->bhts", q_nope, k_nope)
        scores = scores + torch.einsum("bthd,bsd->bhts", q_pe, k_pe.squeeze(2))
        scores = scores * self.softmax_scale
        hidden = positions[None, :] > positions[s - t:, None]
        scores = scores.masked_fill(hidden, float("-inf"))

        out = torch.einsum("bhts,bshd->bthd", scores.softmax(dim=-1), v)
        return self.wo(out.flatten(2)), (latent, k_pe)
