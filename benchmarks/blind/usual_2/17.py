from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn


def apply_rope(x, cos, sin):
    """x: (b, t, h, d); cos, sin: (t, d/2). Rotates the pairs (x[2i], x[2i+1])."""
    x1, x2 = x[..., 0::2], x[..., 1::2]
    cos, sin = cos[None, :, None, :], sin[None, :, None, :]
    return torch.stack((x1 * cos - x2 * sin, x1 * sin + x2 * cos), dim=-1).flatten(-2)


class CachedAttention(nn.Module):
    """Causal attention with a preallocated key/value cache.

    forward(x) is the plain training pass and leaves the cache alone.
    forward(x, start_pos=p) writes the keys and values of x at p, p+1, ... and attends to
    everything up to there; a new sequence begins with start_pos=0, which makes whatever an
    earlier sequence left further right in the buffers unreachable.
    """

    def __init__(self, dim=128, n_heads=4, max_batch_size=8, max_seq_len=256, rope_theta=10000.0):
        super().__init__()
        assert dim % n_heads == 0
        self.n_heads = n_heads
        self.head_dim = dim // n_heads
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

        shape = (max_batch_size, max_seq_len, n_heads, self.head_dim)
        self.register_buffer("cache_k", torch.zeros(shape), persistent=False)
        self.register_buffer("cache_v", torch.zeros(shape), persistent=False)

        inv_freq = rope_theta ** (-torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        angles = torch.outer(torch.arange(max_seq_len).float(), inv_freq)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: torch.Tensor, start_pos: Optional[int] = None) -> torch.Tensor:
        b, t, c = x.shape
        first = 0 if start_pos is None else start_pos
        last = first + t

        q, k, v = self.wqkv(x).view(b, t, 3, self.n_heads, self.head_dim).unbind(dim=2)
        q = apply_rope(q, self.cos[first:last], self.sin[first:last])
        k = apply_rope(k, self.cos[first:last], self.sin[first:last])

        if start_pos is not None:
            self.cache_k[:b, first:last] = k.detach()
            self.cache_v[:b, first:last] = v.detach()
            k, v = self.cache_k[:b, :last], self.cache_v[:b, :last]

        # row i is the token at position first + i
        mask = torch.ones(t, k.shape[1], dtype=torch.bool, device=x.device).tril(diagonal=first)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask)
        return self.wo(y.transpose(1, 2).reshape(b, t, c))
