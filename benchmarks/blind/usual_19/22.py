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


def apply_rope(x, theta=10000.0):
    """x: (batch, seq, heads, d) with d even"""
    t, d = x.size(1), x.size(-1)
    freqs = theta ** (-torch.arange(0, d, 2, device=x.device).float() / d)
    angles = torch.arange(t, device=x.device).float()[:, None] * freqs
    cos, sin = angles.cos()[None, :, None, :].to(x.dtype), angles.sin()[None, :, None, :].to(x.dtype)
    x1, x2 = x[..., : d // 2], x[..., d // 2 :]
    return torch.cat((x1 * cos - x2 * sin, x1 * sin + x2 * cos), dim=-1)


class MultiHeadLatentAttention(nn.Module):
    """Multi-head latent attention as in DeepSeek-V2, training path (no cache).

    A head's query and key consist of a content part of size `nope_dim`, without position, and a
    rotary part of size `rope_dim`; the rotary part of the key is shared by all heads.
    """

    def __init__(self, dim=64, num_heads=4, q_rank=48, kv_rank=32, nope_dim=16, rope_dim=8, v_dim=16):
        super().__init__()
        self.num_heads = num_heads
        self.kv_rank = kv_rank
        self.nope_dim = nope_dim
        self.rope_dim = rope_dim
        self.v_dim = v_dim
        self.qk_dim = nope_dim + rope_dim

        self.wq_a = nn.Linear(dim, q_rank, bias=False)
        self.q_norm = RMSNorm(q_rank)
        self.wq_b = nn.Linear(q_rank, num_heads * self.qk_dim, bias=False)
        self.wkv_a = nn.Linear(dim, kv_rank + rope_dim, bias=False)
        self.kv_norm = RMSNorm(kv_rank)
        self.wkv_b = nn.Linear(kv_rank, num_heads * (nope_dim + v_dim), bias=False)
        self.wo = nn.Linear(num_heads * v_dim, dim, bias=False)

    def forward(self, x):
        b, t, _ = x.shape

        q = self.wq_b(self.q_norm(self.wq_a(x))).view(b, t, self.num_heads, self.qk_dim)
        q_pe, q_nope = q.split([self.rope_dim, self.nope_dim], dim=-1)
        q = torch.cat([apply_rope(q_pe), q_nope], dim=-1)

        latent, k_pe = self.wkv_a(x).split([self.kv_rank, self.rope_dim], dim=-1)
        k_pe = apply_rope(k_pe.unsqueeze(2))
        kv = self.wkv_b(self.kv_norm(latent)).view(b, t, self.num_heads, self.nope_dim + self.v_dim)
        k_nope, v = kv.split([self.nope_dim, self.v_dim], dim=-1)
        k = torch.cat([k_nope, k_pe.expand(-1, -1, self.num_heads, -1)], dim=-1)

        scores = torch.einsum("bthd,bshd->bhts", q, k) * self.qk_dim ** -0.5
        future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        probs = F.softmax(scores.masked_fill(future, float("-inf")), dim=-1)
        out = torch.einsum("bhts,bshd->bthd", probs, v)
        return self.wo(out.flatten(2))
