from dataclasses import dataclass
from typing import Optional, Tuple

import torch
import torch.nn as nn


@dataclass
class RingCache:
    """The last ``window`` keys (already rotated) and values; token p lives in slot p % window."""

    k: torch.Tensor  # (B, H, window, D)
    v: torch.Tensor
    pos: torch.Tensor  # (window,), position held by each slot, -1 if empty
    next_pos: int


class SlidingWindowAttention(nn.Module):
    """Sliding window attention with a rolling cache (Mistral).

    A token sees itself and the ``window - 1`` tokens before it. The slots of the cache are not in order
    of time: the mask is made from the stored positions and softmax does not mind the order.
    """

    def __init__(self, dim: int = 64, n_heads: int = 4, window: int = 8, theta: float = 10000.0):
        super().__init__()
        assert dim % n_heads == 0
        self.n_heads = n_heads
        self.head_dim = dim // n_heads
        self.window = window
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        half = self.head_dim // 2
        self.register_buffer("inv_freq", theta ** (-torch.arange(half).float() / half), persistent=False)

    def _rope(self, x: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
        angle = pos.float()[:, None] * self.inv_freq
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)

    def _empty_cache(self, x: torch.Tensor) -> RingCache:
        shape = (x.shape[0], self.n_heads, self.window, self.head_dim)
        pos = torch.full((self.window,), -1, dtype=torch.long, device=x.device)
        return RingCache(x.new_zeros(shape), x.new_zeros(shape), pos, 0)

    def forward(self, x: torch.Tensor, cache: Optional[RingCache] = None) -> Tuple[torch.Tensor, RingCache]:
        """x: (B, T, dim), the new tokens, any number of them. The given cache is left untouched."""
        B, T, C = x.shape
        if cache is None:
            cache = self._empty_cache(x)
        q_pos = torch.arange(cache.next_pos, cache.next_pos + T, device=x.device)

        q, k, v = self.wqkv(x).view(B, T, 3, self.n_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k = self._rope(q, q_pos), self._rope(k, q_pos)

        # old slots first, then the new tokens; nothing is overwritten before it has been read
        keys = torch.cat((cache.k, k), dim=2)
        values = torch.cat((cache.v, v), dim=2)
        k_pos = torch.cat((cache.pos, q_pos))

        distance = q_pos[:, None] - k_pos[None, :]
        visible = (k_pos >= 0)[None, :] & (distance >= 0) & (distance < self.window)
        scores = q @ keys.transpose(-2, -1) * self.head_dim ** -0.5
        probs = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
        out = (probs @ values).transpose(1, 2).reshape(B, T, C)

        keep = min(T, self.window)
        slots = q_pos[T - keep:] % self.window
        new = RingCache(cache.k.clone(), cache.v.clone(), cache.pos.clone(), cache.next_pos + T)
        new.k[:, :, slots] = k[:, :, T - keep:]
        new.v[:, :, slots] = v[:, :, T - keep:]
        new.pos[slots] = q_pos[T - keep:]
        return self.wo(out), new
