from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def apply_rope(x, positions, theta=10000.0):
    """x: (B, T, H, D) with interleaved pairs, positions: (T,)."""
    half = x.shape[-1] // 2
    inv_freq = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = positions.float()[:, None] * inv_freq
    cos, sin = angles.cos()[None, :, None, :], angles.sin()[None, :, None, :]
    x1, x2 = x[..., 0::2], x[..., 1::2]
    return torch.stack((x1 * cos - x2 * sin, x1 * sin + x2 * cos), dim=-1).flatten(-2)


class MultiHeadLatentAttention(nn.Module):
    """DeepSeek-V2 multi-head latent attention.

    The cache keeps the compressed key/value latent and the shared rotary key of every token.
    """

    def __init__(self, dim: int = 64, n_heads: int = 4, q_lora_rank: int = 32, kv_lora_rank: int = 24,
                 qk_nope_head_dim: int = 16, qk_rope_head_dim: int = 8, v_head_dim: int = 16):
        super().__init__()
        self.n_heads = n_heads
        self.kv_lora_rank = kv_lora_rank
        self.qk_nope_head_dim = qk_nope_head_dim
        self.qk_rope_head_dim = qk_rope_head_dim
        self.qk_head_dim = qk_nope_head_dim + qk_rope_head_dim
        self.v_head_dim = v_head_dim
        self.softmax_scale = self.qk_head_dim ** -0.5

        self.wq_a = nn.Linear(dim, q_lora_rank, bias=False)
        self.q_norm = RMSNorm(q_lora_rank)
        self.wq_b = nn.Linear(q_lora_rank, n_heads * self.qk_head_dim, bias=False)
        self.wkv_a = nn.Linear(dim, kv_lora_rank + qk_rope_head_dim, bias=False)
        self.kv_norm = RMSNorm(kv_lora_rank)
        self.wkv_b = nn.Linear(kv_lora_rank, n_heads * (qk_nope_head_dim + v_head_dim), bias=False)
        self.wo = nn.Linear(n_heads * v_head_dim, dim, bias=False)

    def forward(
        self, x: torch.Tensor, cache: Optional[Tuple[torch.Tensor, torch.Tensor]] = None
    ) -> Tuple[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
        B, T, _ = x.shape
        start = 0 if cache is None else cache[0].shape[1]
        end = start + T
        positions = torch.arange(end, device=x.device)

        q = self.wq_b(self.q_norm(self.wq_a(x))).view(B, T, self.n_heads, self.qk_head_dim)
        q_nope, q_pe = q.split([self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)

        kv, k_pe = self.wkv_a(x).split([self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
        kv = self.kv_norm(kv)
        if cache is not None:
            kv = torch.cat([cache[0], kv], dim=1)
            k_pe = torch.cat([cache[1], k_pe], dim=1)

        q_pe = apply_rope(q_pe, positions[start:])
        k_pe = apply_rope(k_pe.unsqueeze(2), positions).squeeze(2)
        new_cache = (kv, k_pe)

        kv = self.wkv_b(kv).view(B, end, self.n_heads, self.qk_nope_head_dim + self.v_head_dim)
        k_nope, v = kv.split([self.qk_nope_head_dim, self.v_head_dim], dim=-1)

        scores = torch.einsum("bthd,bshd->bhts", q_nope, k_nope)
        scores = scores + torch.einsum("bthd,bsd->bhts", q_pe, k_pe)
        scores = scores * self.softmax_scale
        mask = torch.ones(T, end, dtype=torch.bool, device=x.device).tril(diagonal=start)
        scores = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)

        out = torch.einsum("bhts,bshd->bthd", scores, v)
        return self.wo(out.flatten(2)), new_cache
