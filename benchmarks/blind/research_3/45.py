from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


class GroupedQueryAttention(nn.Module):
    """GQA with a growing cache and rotary embedding on the first ``rotary_pct`` of the
    head dimension only (GPT-NeoX style). The cache holds rotated keys.

    Usage: ``y, past = attn(x, past)``; ``past`` is None or ``(k, v)`` with
    ``[B, num_kv_heads, S, head_dim]``.
    """

    def __init__(self, dim: int = 64, num_heads: int = 8, num_kv_heads: int = 2, rotary_pct: float = 0.5):
        super().__init__()
        assert num_heads % num_kv_heads == 0
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = dim // num_heads
        self.rotary_dim = int(self.head_dim * rotary_pct) // 2 * 2
        kv = num_kv_heads * self.head_dim
        self.sizes = (dim, kv, kv)
        self.wqkv = nn.Linear(dim, dim + 2 * kv, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        inv_freq = 10000.0 ** (-torch.arange(0, self.rotary_dim, 2).float() / self.rotary_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def _rope(self, t: torch.Tensor, offset: int) -> torch.Tensor:
        rot, rest = t[..., : self.rotary_dim], t[..., self.rotary_dim:]
        pos = torch.arange(offset, offset + t.size(-2), device=t.device).float()
        ang = torch.outer(pos, self.inv_freq)
        cos, sin = ang.cos().to(t.dtype), ang.sin().to(t.dtype)
        even, odd = rot[..., 0::2], rot[..., 1::2]
        rot = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
        return torch.cat((rot, rest), dim=-1)

    def forward(
        self, x: torch.Tensor, past: Optional[Tuple[torch.Tensor, torch.Tensor]] = None
    ) -> Tuple[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
        B, T, C = x.shape
        q, k, v = self.wqkv(x).split(self.sizes, dim=-1)
        q = q.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        k = k.view(B, T, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = v.view(B, T, self.num_kv_heads, self.head_dim).transpose(1, 2)

        S = past[0].size(2) if past is not None else 0
        q, k = self._rope(q, S), self._rope(k, S)
        if past is not None:
            k = torch.cat((past[0], k), dim=2)
            v = torch.cat((past[1], v), dim=2)
        present = (k, v)

        # fold the group of query heads into the query axis, the cache is never expanded
        g = self.num_heads // self.num_kv_heads
        q = q.reshape(B, self.num_kv_heads, g * T, self.head_dim)
        keep = torch.ones(T, S + T, dtype=torch.bool, device=x.device).tril(S).repeat(g, 1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        y = y.reshape(B, self.num_heads, T, self.head_dim)

        return self.wo(y.transpose(1, 2).reshape(B, T, C)), present
