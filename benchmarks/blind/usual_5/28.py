from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class KVCache:
    """Fixed-size buffers, filled from the left."""

    def __init__(self, batch, heads, max_len, head_dim, device=None, dtype=None):
        self.k = torch.empty(batch, heads, max_len, head_dim, device=device, dtype=dtype)
        self.v = torch.empty(batch, heads, max_len, head_dim, device=device, dtype=dtype)
        self.length = 0

    @torch.no_grad()
    def append(self, k, v):
        end = self.length + k.size(2)
        if end > self.k.size(2):
            raise ValueError("cache is full")
        self.k[:, :, self.length:end] = k
        self.v[:, :, self.length:end] = v
        self.length = end
        return self.k[:, :, :end], self.v[:, :, :end]


class DecoderSelfAttention(nn.Module):
    """Causal self-attention. With a cache (generation, no gradients) the new tokens are
    taken to follow those in the cache; any number of them can come at once."""

    def __init__(self, dim: int = 128, num_heads: int = 4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)

    def new_cache(self, batch: int, max_len: int = 128) -> KVCache:
        w = self.qkv.weight
        return KVCache(batch, self.num_heads, max_len, self.head_dim, w.device, w.dtype)

    def forward(self, x: torch.Tensor, cache: Optional[KVCache] = None) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        if cache is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            k, v = cache.append(k, v)
            s = k.size(2)
            # a single new token may see everything that is stored
            mask = None if t == 1 else torch.ones(t, s, dtype=torch.bool, device=x.device).tril(s - t)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.proj(y.transpose(1, 2).reshape(b, t, c))
