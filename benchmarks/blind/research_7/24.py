from typing import Optional, Tuple

import torch
import torch.nn as nn


def rope(x, positions, base=10000.0):
    half = x.size(-1) // 2
    freq = base ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = positions.to(torch.float32)[:, None] * freq
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class StreamingAttention(nn.Module):
    """Attention for unbounded streams with a cache of constant size.

    The cache keeps the first ``num_sink`` tokens and the latest ``window`` tokens. Keys are
    stored without positions and rotated by their place inside the cache when they are read.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, num_sink: int = 4, window: int = 16):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.num_sink = num_sink
        self.window = window
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)

    def _evict(self, t):
        return torch.cat((t[:, :, : self.num_sink], t[:, :, -self.window:]), dim=2)

    def step(self, x, cache: Optional[Tuple[torch.Tensor, torch.Tensor]] = None):
        """x: [B, 1, dim], the newest token."""
        B = x.size(0)
        q, k, v = self.qkv(x).view(B, 1, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k = torch.cat((cache[0], k), dim=2)
            v = torch.cat((cache[1], v), dim=2)
        k, v = self._evict(k), self._evict(v)

        pos = torch.arange(k.size(2), device=x.device)
        scores = rope(q, pos[-1:]) @ rope(k, pos).transpose(-1, -2) * self.head_dim ** -0.5
        out = scores.softmax(dim=-1) @ v
        return self.proj(out.transpose(1, 2).reshape(B, 1, -1)), (k, v)

    def forward(self, x, cache=None):
        outs = []
        for t in range(x.size(1)):
            y, cache = self.step(x[:, t:t + 1], cache)
            outs.append(y)
        return torch.cat(outs, dim=1), cache
