from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class RingCache:
    k: torch.Tensor          # (B, H, window, D), slot = position % window
    v: torch.Tensor
    next_pos: int = 0


class LocalCausalAttention(nn.Module):
    """Causal attention over the last ``window`` tokens (the token itself included).

    Decoding uses a ring buffer. Its slots are not in temporal order, which does not
    matter: keys are rotated by their absolute position before they are stored and a
    single query attends to all of the filled slots.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, window: int = 8, base: float = 10000.0):
        super().__init__()
        self.h, self.d, self.window = num_heads, dim // num_heads, window
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        inv = 1.0 / base ** (torch.arange(0, self.d, 2).float() / self.d)
        self.register_buffer("inv_freq", inv, persistent=False)

    def new_cache(self, batch: int) -> RingCache:
        w = self.qkv.weight
        shape = (batch, self.h, self.window, self.d)
        return RingCache(w.new_zeros(shape), w.new_zeros(shape))

    def rotate(self, x: torch.Tensor, start: int) -> torch.Tensor:
        t = torch.arange(start, start + x.size(2), device=x.device).float()
        ang = t[:, None] * self.inv_freq[None, :]
        cos, sin = ang.cos().to(x.dtype), ang.sin().to(x.dtype)
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)

    def forward(self, x: torch.Tensor, cache: Optional[RingCache] = None) -> torch.Tensor:
        """Without a cache: the whole sequence. With a cache: exactly one new token per call."""
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.h, self.d).permute(2, 0, 3, 1, 4)

        if cache is None:
            q, k = self.rotate(q, 0), self.rotate(k, 0)
            i = torch.arange(T, device=x.device)
            dist = i[:, None] - i[None, :]
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=(dist >= 0) & (dist < self.window))
        else:
            if T != 1:
                raise ValueError("decode one token at a time")
            pos = cache.next_pos
            q, k = self.rotate(q, pos), self.rotate(k, pos)
            slot = pos % self.window
            cache.k[:, :, slot] = k[:, :, 0].detach()
            cache.v[:, :, slot] = v[:, :, 0].detach()
            cache.next_pos = pos + 1
            filled = min(pos + 1, self.window)
            y = F.scaled_dot_product_attention(q, cache.k[:, :, :filled], cache.v[:, :, :filled])

        return self.proj(y.transpose(1, 2).reshape(B, T, C))
