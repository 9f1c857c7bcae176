from typing import Optional

import torch
import torch.nn as nn


class AbsorbedLatentAttention(nn.Module):
    """Latent attention that works on the compressed cache directly.

    The up-projections of key and value are absorbed: with k = W_uk c the product q . k equals
    (W_uk^T q) . c, so scores and the weighted sum are computed in the latent space, whose size is
    `kv_rank`. The scale stays that of the uncompressed head, nope_dim + rope_dim.

    cache: tensor (B, S, kv_rank + rope_dim) from an earlier call, or None.
    """

    def __init__(self, dim=64, num_heads=4, kv_rank=32, nope_dim=16, rope_dim=8, v_dim=16, theta=10000.0):
        super().__init__()
        self.num_heads = num_heads
        self.kv_rank = kv_rank
        self.nope_dim = nope_dim
        self.rope_dim = rope_dim
        self.scale = (nope_dim + rope_dim) ** -0.5

        self.w_q = nn.Linear(dim, num_heads * (nope_dim + rope_dim), bias=False)
        self.w_dkv = nn.Linear(dim, kv_rank + rope_dim, bias=False)
        self.latent_norm = nn.LayerNorm(kv_rank)
        self.w_uk = nn.Parameter(torch.randn(num_heads, nope_dim, kv_rank) * kv_rank ** -0.5)
        self.w_uv = nn.Parameter(torch.randn(num_heads, v_dim, kv_rank) * kv_rank ** -0.5)
        self.w_o = nn.Linear(num_heads * v_dim, dim, bias=False)
        self.register_buffer("freq", theta ** (-torch.arange(0, rope_dim, 2).float() / rope_dim), persistent=False)

    def _rotate(self, x, start):
        """x: (B, T, ..., rope_dim), time on axis 1"""
        pos = torch.arange(start, start + x.size(1), device=x.device).float()
        angle = pos[:, None] * self.freq
        angle = angle.view(1, x.size(1), *([1] * (x.dim() - 3)), -1)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)

    def forward(self, x: torch.Tensor, cache: Optional[torch.Tensor] = None):
        B, T, _ = x.shape
        start = 0 if cache is None else cache.size(1)

        q = self.w_q(x).view(B, T, self.num_heads, self.nope_dim + self.rope_dim)
        q_nope, q_rope = q.split([self.nope_dim, self.rope_dim], dim=-1)
        q_rope = self._rotate(q_rope, start)

        latent, k_rope = self.w_dkv(x).split([self.kv_rank, self.rope_dim], dim=-1)
        entry = torch.cat((self.latent_norm(latent), self._rotate(k_rope, start)), dim=-1)
        cache = entry if cache is None else torch.cat((cache, entry), dim=1)
        latent, k_rope = cache.split([self.kv_rank, self.rope_dim], dim=-1)

        q_latent = torch.einsum("bthn,hnr->bthr", q_nope, self.w_uk)
        scores = torch.einsum("bthr,bsr->bhts", q_latent, latent)
        scores = (scores + torch.einsum("bthp,bsp->bhts", q_rope, k_rope)) * self.scale

        S = cache.size(1)
        hidden = torch.ones(T, S, dtype=torch.bool, device=x.device).triu(1 + start)
        probs = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)

        context = torch.einsum("bhts,bsr->bthr", probs, latent)
        out = torch.einsum("bthr,hvr->bthv", context, self.w_uv)
        return self.w_o(out.flatten(2)), cache
