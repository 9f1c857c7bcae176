from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Cache = Tuple[Tensor, Tensor]


def rotate_half(x: Tensor) -> Tensor:
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


class StreamingAttention(nn.Module):
    """Sliding window attention with a bounded key/value cache.

    A token sees itself and the ``window - 1`` tokens before it. For generation, feed one or
    more new tokens together with the cache of the previous call; never more than ``window``
    positions are stored. Keys are stored after the rotation.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, window: int = 8, base: float = 10000.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.window = window
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        inv_freq = base ** (-torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        angles = positions[:, None].float() * self.inv_freq[None, :]
        angles = torch.cat((angles, angles), dim=-1)
        return x * angles.cos() + rotate_half(x) * angles.sin()

    def forward(self, x: Tensor, cache: Optional[Cache] = None) -> Tuple[Tensor, Cache]:
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)

        past = 0 if cache is None else cache[0].size(2)
        positions = torch.arange(past, past + t, device=x.device)
        q = self.rotate(q, positions)
        k = self.rotate(k, positions)

        if cache is not None:
            k = torch.cat((cache[0], k), dim=2)
            v = torch.cat((cache[1], v), dim=2)

        q_idx = positions[:, None]
        k_idx = torch.arange(k.size(2), device=x.device)[None, :]
        visible = (k_idx <= q_idx) & (k_idx > q_idx - self.window)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)

        new_cache = (k[:, :, -self.window:], v[:, :, -self.window:])
        return self.proj(y.transpose(1, 2).reshape(b, t, -1)), new_cache
