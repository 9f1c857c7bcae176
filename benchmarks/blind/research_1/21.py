from dataclasses import dataclass
from typing import Optional, Tuple

import torch
import torch.nn as nn


@dataclass
class RollingCache:
    """Fixed-size cache. The entry of absolute position ``p`` lives in slot ``p % window``, hence the
    slots are in general not in chronological order; ``slot_pos`` says what each one holds (-1: empty)."""
    k: torch.Tensor
    v: torch.Tensor
    slot_pos: torch.Tensor
    next_pos: int


def rotary(x: torch.Tensor, pos: torch.Tensor, theta: float) -> torch.Tensor:
    half = x.shape[-1] // 2
    freq = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = pos.float()[:, None] * freq[None, :]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class RollingWindowAttention(nn.Module):
    """Sliding-window attention (every token sees itself and the ``window - 1`` tokens before it).

    Call it with a whole prompt, with chunks, or token by token; pass the returned cache on.
    Keys are stored after the rotation.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, window: int = 16, theta: float = 10000.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.window = window
        self.theta = theta
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def empty_cache(self, batch: int, like: torch.Tensor) -> RollingCache:
        shape = (batch, self.num_heads, self.window, self.head_dim)
        return RollingCache(
            k=like.new_zeros(shape),
            v=like.new_zeros(shape),
            slot_pos=torch.full((self.window,), -1, dtype=torch.long, device=like.device),
            next_pos=0,
        )

    def forward(self, x: torch.Tensor, cache: Optional[RollingCache] = None) -> Tuple[torch.Tensor, RollingCache]:
        b, t, c = x.shape
        if cache is None:
            cache = self.empty_cache(b, x)
        pos = torch.arange(cache.next_pos, cache.next_pos + t, device=x.device)

        def split(y):
            return y.view(b, t, self.num_heads, self.head_dim).transpose(1, 2)

        q = rotary(split(self.wq(x)), pos, self.theta)
        k = rotary(split(self.wk(x)), pos, self.theta)
        v = split(self.wv(x))

        keys = torch.cat([cache.k, k], dim=2)
        values = torch.cat([cache.v, v], dim=2)
        key_pos = torch.cat([cache.slot_pos, pos])

        delta = pos[:, None] - key_pos[None, :]
        visible = (key_pos[None, :] >= 0) & (delta >= 0) & (delta < self.window)
        att = (q @ keys.transpose(-1, -2)) * self.head_dim ** -0.5
        att = att.masked_fill(~visible, float("-inf")).softmax(dim=-1)
        out = self.wo((att @ values).transpose(1, 2).reshape(b, t, c))

        keep = pos[-self.window:]
        slots = keep % self.window
        new_k, new_v, new_pos = cache.k.clone(), cache.v.clone(), cache.slot_pos.clone()
        new_k[:, :, slots] = k[:, :, -self.window:]
        new_v[:, :, slots] = v[:, :, -self.window:]
        new_pos[slots] = keep
        return out, RollingCache(new_k, new_v, new_pos, cache.next_pos + t)
