"""Multi-head latent attention, small, with the decoupled rotary part."""
import torch
import torch.nn as nn


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rope(x, base=10000.0):
    """x: (batch, time, heads, d). Pairs are neighbours (0,1), (2,3), ..."""
    t, d = x.size(1), x.size(-1)
    freq = base ** (-torch.arange(0, d, 2, device=x.device).float() / d)
    ang = torch.arange(t, device=x.device).float()[:, None] * freq
    cos, sin = ang.cos()[None, :, None], ang.sin()[None, :, None]
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


class LatentAttention(nn.Module):
    """Keys and values are expanded from a shared latent of kv_rank numbers per token.

    The rotary key has a single head that all query heads share. The width of a
    score is nope_dim + rope_dim, and that is what it is divided by the root of;
    values have a width of their own.
    """

    def __init__(self, dim=64, num_heads=4, kv_rank=24, nope_dim=16, rope_dim=8, v_dim=12):
        super().__init__()
        self.h, self.nope, self.rd, self.vd = num_heads, nope_dim, rope_dim, v_dim
        self.kv_rank = kv_rank
        self.wq = nn.Linear(dim, num_heads * (nope_dim + rope_dim), bias=False)
        self.wkv_a = nn.Linear(dim, kv_rank + rope_dim, bias=False)
        self.kv_norm = RMSNorm(kv_rank)
        self.wkv_b = nn.Linear(kv_rank, num_heads * (nope_dim + v_dim), bias=False)
        self.wo = nn.Linear(num_heads * v_dim, dim, bias=False)
        self.scale = (nope_dim + rope_dim) ** -0.5

    def forward(self, x):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.h, self.nope + self.rd)
        q_nope, q_rope = q.split([self.nope, self.rd], dim=-1)
        latent, k_rope = self.wkv_a(x).split([self.kv_rank, self.rd], dim=-1)
        kv = self.wkv_b(self.kv_norm(latent)).view(b, t, self.h, self.nope + self.vd)
        k_nope, v = kv.split([self.nope, self.vd], dim=-1)
        q_rope = rope(q_rope)
        k_rope = rope(k_rope.unsqueeze(2)).squeeze(2)

        s = torch.einsum("bihd,bjhd->bhij", q_nope, k_nope)
        s = s + torch.einsum("bihd,bjd->bhij", q_rope, k_rope)
        s = s * self.scale
        s = s + torch.full((t, t), float("-inf"), device=x.device).triu(1)
        w = s.softmax(-1)
        return self.wo(torch.einsum("bhij,bjhd->bihd", w, v).reshape(b, t, -1))
