from dataclasses import dataclass
from typing import Optional

import torch
from torch import nn
import torch.nn.functional as F


@dataclass
class RollingCache:
    """Ring buffer: the token at position p lives in slot ``p % window``. Slot order means nothing."""

    k: torch.Tensor          # (batch, kv_heads, window, head_dim), rotated
    v: torch.Tensor
    positions: torch.Tensor  # (window,), position held by each slot, -1 if it was never written
    seen: int = 0

    def update(self, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor) -> None:
        window = self.k.shape[2]
        k, v, kept = k[:, :, -window:], v[:, :, -window:], positions[-window:]
        slots = kept % window
        self.k[:, :, slots] = k
        self.v[:, :, slots] = v
        self.positions[slots] = kept
        self.seen += positions.numel()


class RollingWindowAttention(nn.Module):
    """Mistral-like sliding window attention whose cache never grows beyond the window.

    A query at position p sees the positions ``p - window + 1 ... p``. Input may arrive in chunks of any
    length; all sequences of a batch have the same length (no padding).
    """

    def __init__(self, dim: int = 128, n_heads: int = 4, n_kv_heads: int = 2, window: int = 16, theta: float = 10000.0):
        super().__init__()
        assert dim % n_heads == 0 and n_heads % n_kv_heads == 0
        self.n_heads = n_heads
        self.n_kv_heads = n_kv_heads
        self.head_dim = dim // n_heads
        self.window = window
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=False)
        inv_freq = theta ** -(torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def new_cache(self, batch_size: int, device=None, dtype=torch.float32) -> RollingCache:
        shape = (batch_size, self.n_kv_heads, self.window, self.head_dim)
        return RollingCache(
            k=torch.zeros(shape, device=device, dtype=dtype),
            v=torch.zeros(shape, device=device, dtype=dtype),
            positions=torch.full((self.window,), -1, dtype=torch.long, device=device),
        )

    def _rotate(self, x, positions):
        angle = torch.outer(positions.float(), self.inv_freq)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)

    def forward(self, x: torch.Tensor, cache: Optional[RollingCache] = None) -> torch.Tensor:
        b, t, _ = x.shape
        start = 0 if cache is None else cache.seen
        q_pos = torch.arange(start, start + t, device=x.device)

        q = self.wq(x).view(b, t, self.n_heads, self.head_dim).transpose(1, 2)
        k = self.wk(x).view(b, t, self.n_kv_heads, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(b, t, self.n_kv_heads, self.head_dim).transpose(1, 2)
        q, k = self._rotate(q, q_pos), self._rotate(k, q_pos)

        keys, values, k_pos = k, v, q_pos
        if cache is not None:
            # read before writing: early queries of a chunk still need slots that its end overwrites
            keys = torch.cat([cache.k, k], dim=2)
            values = torch.cat([cache.v, v], dim=2)
            k_pos = torch.cat([cache.positions, q_pos])
            with torch.no_grad():
                cache.update(k.detach(), v.detach(), q_pos)

        delta = q_pos[:, None] - k_pos[None, :]
        visible = (delta >= 0) & (delta < self.window) & (k_pos >= 0)[None, :]

        rep = self.n_heads // self.n_kv_heads
        keys, values = keys.repeat_interleave(rep, dim=1), values.repeat_interleave(rep, dim=1)
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=visible)
        return self.wo(out.transpose(1, 2).reshape(b, t, -1))
