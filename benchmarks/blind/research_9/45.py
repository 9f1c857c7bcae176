from typing import Optional, Tuple

import torch
import torch.nn as nn


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps).type_as(x) * self.weight


def rope(x: torch.Tensor, positions: torch.Tensor, base: float = 10000.0) -> torch.Tensor:
    """x: [B, T, H, D] with interleaved pairs."""
    d = x.shape[-1]
    inv = base ** (-torch.arange(0, d, 2, device=x.device, dtype=torch.float32) / d)
    ang = positions.float()[:, None, None] * inv
    cos, sin = ang.cos().to(x.dtype), ang.sin().to(x.dtype)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)


class LatentAttention(nn.Module):
    """Multi-head latent attention in the absorbed form.

    The cache holds, per token, one latent of width ``kv_rank`` and one rotated key of width ``rope_dim``,
    both shared by all heads. The up-projection of the keys is applied to the query, that of the values
    to the result, so per-head keys and values never exist. The logits are those of heads with
    ``nope_dim + rope_dim`` channels and are scaled accordingly, whatever ``kv_rank`` is.
    """

    def __init__(
        self,
        dim: int = 64,
        n_heads: int = 4,
        kv_rank: int = 24,
        nope_dim: int = 16,
        rope_dim: int = 8,
        v_dim: int = 16,
    ):
        super().__init__()
        self.n_heads, self.kv_rank = n_heads, kv_rank
        self.nope_dim, self.rope_dim, self.v_dim = nope_dim, rope_dim, v_dim
        self.wq = nn.Linear(dim, n_heads * (nope_dim + rope_dim), bias=False)
        self.wkv_a = nn.Linear(dim, kv_rank + rope_dim, bias=False)
        self.kv_norm = RMSNorm(kv_rank)
        self.wkv_b = nn.Linear(kv_rank, n_heads * (nope_dim + v_dim), bias=False)
        self.wo = nn.Linear(n_heads * v_dim, dim, bias=False)
        self.softmax_scale = (nope_dim + rope_dim) ** -0.5

    def forward(self, x: torch.Tensor, cache: Optional[Tuple[torch.Tensor, torch.Tensor]] = None):
        B, T, _ = x.shape
        past = 0 if cache is None else cache[0].shape[1]
        positions = torch.arange(past, past + T, device=x.device)

        q = self.wq(x).view(B, T, self.n_heads, -1)
        q_nope, q_pe = q.split([self.nope_dim, self.rope_dim], dim=-1)
        q_pe = rope(q_pe, positions)

        latent, k_pe = self.wkv_a(x).split([self.kv_rank, self.rope_dim], dim=-1)
        latent = self.kv_norm(latent)
        k_pe = rope(k_pe.unsqueeze(2), positions).squeeze(2)
        if cache is not None:
            latent = torch.cat([cache[0], latent], dim=1)
            k_pe = torch.cat([cache[1], k_pe], dim=1)
        cache = (latent, k_pe)

        w_b = self.wkv_b.weight.view(self.n_heads, self.nope_dim + self.v_dim, self.kv_rank)
        w_uk, w_uv = w_b[:, : self.nope_dim], w_b[:, self.nope_dim:]
        q_lat = torch.einsum("bthd,hdc->bthc", q_nope, w_uk)

        scores = torch.einsum("bthc,bsc->bhts", q_lat, latent) + torch.einsum("bthr,bsr->bhts", q_pe, k_pe)
        scores = scores * self.softmax_scale
        future = torch.ones(T, past + T, dtype=torch.bool, device=x.device).triu(1 + past)
        probs = scores.masked_fill(future, float("-inf")).softmax(dim=-1, dtype=torch.float32).type_as(x)

        ctx = torch.einsum("bhts,bsc->bthc", probs, latent)
        out = torch.einsum("bthc,hdc->bthd", ctx, w_uv)
        return self.wo(out.flatten(2)), cache
