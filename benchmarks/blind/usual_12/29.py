from typing import Optional, Tuple

import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rope(x, positions, base=10000.0):
    """Rotate pairs (x_2i, x_2i+1) of the last axis; x is (b, t, h, d) and positions (t,)."""
    d = x.shape[-1]
    freq = base ** (-torch.arange(0, d, 2, device=x.device, dtype=torch.float32) / d)
    angle = positions.float()[:, None] * freq
    cos, sin = angle.cos()[None, :, None], angle.sin()[None, :, None]
    x1, x2 = x[..., 0::2], x[..., 1::2]
    return torch.stack((x1 * cos - x2 * sin, x1 * sin + x2 * cos), dim=-1).flatten(-2).type_as(x)


class MultiHeadLatentAttention(nn.Module):
    """Multi-head latent attention (DeepSeek-V2) with a compressed cache.

    Per token only the latent of size ``kv_lora_rank`` and one rotary key of size
    ``qk_rope_head_dim``, shared by all heads, are kept.
    """

    def __init__(
        self, dim=64, num_heads=4, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16
    ):
        super().__init__()
        self.h, self.rank = num_heads, kv_lora_rank
        self.d_nope, self.d_rope, self.d_v = qk_nope_head_dim, qk_rope_head_dim, v_head_dim
        self.scale = (qk_nope_head_dim + qk_rope_head_dim) ** -0.5
        self.wq = nn.Linear(dim, num_heads * (self.d_nope + self.d_rope), bias=False)
        self.wkv_a = nn.Linear(dim, kv_lora_rank + self.d_rope, bias=False)
        self.kv_norm = RMSNorm(kv_lora_rank)
        self.wkv_b = nn.Linear(kv_lora_rank, num_heads * (self.d_nope + self.d_v), bias=False)
        self.wo = nn.Linear(num_heads * self.d_v, dim, bias=False)

    def forward(self, x, cache: Optional[Tuple[torch.Tensor, torch.Tensor]] = None):
        b, t, _ = x.shape
        past = 0 if cache is None else cache[0].shape[1]
        total = past + t

        q = self.wq(x).view(b, t, self.h, self.d_nope + self.d_rope)
        q_nope, q_pe = q.split([self.d_nope, self.d_rope], dim=-1)
        latent, k_pe = self.wkv_a(x).split([self.rank, self.d_rope], dim=-1)
        latent, k_pe = self.kv_norm(latent), k_pe.unsqueeze(2)
        if cache is not None:
            latent = torch.cat([cache[0], latent], dim=1)
            k_pe = torch.cat([cache[1], k_pe], dim=1)

        q_pe = rope(q_pe, torch.arange(past, total, device=x.device))
        k_pe = rope(k_pe, torch.arange(total, device=x.device))
        new_cache = (latent, k_pe)

        kv = self.wkv_b(latent).view(b, total, self.h, self.d_nope + self.d_v)
        k_nope, v = kv.split([self.d_nope, self.d_v], dim=-1)
        scores = torch.einsum("bqhd,bkhd->bhqk", q_nope, k_nope)
        scores = scores + torch.einsum("bqhd,bkd->bhqk", q_pe, k_pe.squeeze(2))
        visible = torch.ones(t, total, dtype=torch.bool, device=x.device).tril(past)
        probs = (scores * self.scale).masked_fill(~visible, float("-inf")).softmax(dim=-1)
        out = torch.einsum("bhqk,bkhd->bqhd", probs, v).flatten(2)
        return self.wo(out), new_cache
