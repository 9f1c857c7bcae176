from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F

Cache = Tuple[torch.Tensor, torch.Tensor]


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat([-x2, x1], dim=-1)


class RollingWindowAttention(nn.Module):
    """Causal sliding-window attention with rotary positions and a rolling cache.

    Each token attends to itself and to the ``window - 1`` tokens before it, so the cache never holds more than
    ``window`` entries. Keys are cached after rotation.

    Example::

        out, cache = attn(prompt)
        out, cache = attn(next_token, cache)
    """

    def __init__(self, dim: int = 128, num_heads: int = 4, window: int = 16, base: float = 10000.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.window = window
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        inv_freq = 1.0 / (base ** (torch.arange(0, self.head_dim, 2).float() / self.head_dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def rope(self, x: torch.Tensor, offset: int) -> torch.Tensor:
        pos = torch.arange(offset, offset + x.size(2), device=x.device).float()
        angles = torch.outer(pos, self.inv_freq)
        angles = torch.cat([angles, angles], dim=-1)
        return x * angles.cos() + rotate_half(x) * angles.sin()

    def forward(self, x: torch.Tensor, cache: Optional[Cache] = None) -> Tuple[torch.Tensor, Cache]:
        b, t, dim = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)

        past = cache[0].size(2) if cache is not None else 0
        q = self.rope(q, past)
        k = self.rope(k, past)
        if cache is not None:
            k = torch.cat([cache[0], k], dim=2)
            v = torch.cat([cache[1], v], dim=2)

        q_idx = torch.arange(past, past + t, device=x.device)
        k_idx = torch.arange(past + t, device=x.device)
        dist = q_idx[:, None] - k_idx[None, :]
        visible = (dist >= 0) & (dist < self.window)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        y = self.out(y.transpose(1, 2).reshape(b, t, dim))

        return y, (k[:, :, -self.window :], v[:, :, -self.window :])
