from typing import Optional, Tuple

import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return y.type_as(x) * self.weight


def rotate(x, positions, base=10000.0):
    """x: (b, n, h, d), neighbouring channels form the pairs"""
    d = x.shape[-1]
    inv_freq = base ** (-torch.arange(0, d, 2, device=x.device, dtype=torch.float32) / d)
    angle = positions.float()[:, None] * inv_freq[None, :]
    cos, sin = angle.cos()[:, None, :], angle.sin()[:, None, :]
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    out = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return out.flatten(-2).type_as(x)


class MultiHeadLatentAttention(nn.Module):
    """
    Multi-head latent attention with absorbed up-projections (DeepSeek-V2).

    Only the normed latent (rank ``kv_lora_rank``) and one rotary key shared by all heads are cached. Keys and
    values are never expanded: W_uk is applied to the query and W_uv to the attended latents. The scale
    stays that of the expanded form, (nope + rope) ** -0.5, since the dot products are the same numbers.
    """

    def __init__(
        self, dim=64, num_heads=4, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16
    ):
        super().__init__()
        self.n_heads = num_heads
        self.rank = kv_lora_rank
        self.nope = qk_nope_head_dim
        self.rope = qk_rope_head_dim
        self.v_dim = v_head_dim
        self.softmax_scale = (self.nope + self.rope) ** -0.5
        self.wq = nn.Linear(dim, num_heads * (self.nope + self.rope), bias=False)
        self.wkv_a = nn.Linear(dim, kv_lora_rank + self.rope, bias=False)
        self.kv_norm = RMSNorm(kv_lora_rank)
        self.wkv_b = nn.Linear(kv_lora_rank, num_heads * (self.nope + v_head_dim), bias=False)
        self.wo = nn.Linear(num_heads * v_head_dim, dim, bias=False)

    def forward(self, x: torch.Tensor, cache: Optional[Tuple[torch.Tensor, torch.Tensor]] = None):
        b, n, _ = x.shape
        past = 0 if cache is None else cache[0].shape[1]
        positions = torch.arange(past, past + n, device=x.device)

        q = self.wq(x).view(b, n, self.n_heads, self.nope + self.rope)
        q_nope, q_pe = q.split([self.nope, self.rope], dim=-1)
        q_pe = rotate(q_pe, positions)

        latent, k_pe = self.wkv_a(x).split([self.rank, self.rope], dim=-1)
        latent = self.kv_norm(latent)
        k_pe = rotate(k_pe.unsqueeze(2), positions).squeeze(2)
        if cache is not None:
            latent = torch.cat([cache[0], latent], dim=1)
            k_pe = torch.cat([cache[1], k_pe], dim=1)

        w_ukv = self.wkv_b.weight.view(self.n_heads, self.nope + self.v_dim, self.rank)
        w_uk, w_uv = w_ukv.split([self.nope, self.v_dim], dim=1)

        q_latent = torch.einsum("bihd,hdr->bihr", q_nope, w_uk)
        scores = torch.einsum("bihr,bjr->bhij", q_latent, latent)
        scores = scores + torch.einsum("bihd,bjd->bhij", q_pe, k_pe)
        scores = scores * self.softmax_scale
        keys = torch.arange(past + n, device=x.device)
        scores = scores.masked_fill(keys[None, :] > positions[:, None], float("-inf"))
        attn = scores.softmax(dim=-1)

        context = torch.einsum("bhij,bjr->bihr", attn, latent)
        out = torch.einsum("bihr,hdr->bihd", context, w_uv)
        return self.wo(out.flatten(2)), (latent, k_pe)
