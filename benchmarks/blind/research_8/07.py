from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


class Rotary(nn.Module):
    def __init__(self, dim, base=10000.0):
        super().__init__()
        inv = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("inv_freq", inv, persistent=False)

    def forward(self, positions):
        f = positions.float()[:, None] * self.inv_freq[None, :]
        emb = torch.cat((f, f), dim=-1)
        return emb.cos(), emb.sin()


class CachedGQA(nn.Module):
    """Grouped-query attention for decoding. Pass the returned cache back in at the next call."""

    def __init__(self, dim: int = 64, num_heads: int = 8, num_kv_heads: int = 2, rope_base: float = 10000.0):
        super().__init__()
        self.h, self.kvh = num_heads, num_kv_heads
        self.hd = dim // num_heads
        self.q_proj = nn.Linear(dim, self.h * self.hd, bias=False)
        self.k_proj = nn.Linear(dim, self.kvh * self.hd, bias=False)
        self.v_proj = nn.Linear(dim, self.kvh * self.hd, bias=False)
        self.o_proj = nn.Linear(self.h * self.hd, dim, bias=False)
        self.rotary = Rotary(self.hd, rope_base)

    def forward(
        self, x: torch.Tensor, cache: Optional[Tuple[torch.Tensor, torch.Tensor]] = None
    ) -> Tuple[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, self.h, self.hd).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.kvh, self.hd).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.kvh, self.hd).transpose(1, 2)

        cos, sin = self.rotary(torch.arange(t, device=x.device))
        cos, sin = cos.to(q.dtype), sin.to(q.dtype)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin

        if cache is not None:
            k = torch.cat((cache[0], k), dim=2)
            v = torch.cat((cache[1], v), dim=2)
        new_cache = (k, v)

        s = k.size(2)
        allowed = torch.ones(t, s, dtype=torch.bool, device=x.device).tril(diagonal=s - t)
        rep = self.h // self.kvh
        y = F.scaled_dot_product_attention(
            q, k.repeat_interleave(rep, dim=1), v.repeat_interleave(rep, dim=1), attn_mask=allowed
        )
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1)), new_cache
