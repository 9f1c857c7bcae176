from typing import NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LayerCache(NamedTuple):
    keys: Tensor
    values: Tensor


def rotary(x: Tensor, positions: Tensor, base: float) -> Tensor:
    half = x.shape[-1] // 2
    freqs = base ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = positions.float().unsqueeze(-1) * freqs
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.split(half, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class CachedMultiQueryAttention(nn.Module):
    """Multi-query attention (one key/value head) for incremental decoding.

    The second result is the cache for the next call, which then takes only the new tokens.
    """

    def __init__(self, dim: int = 256, num_heads: int = 8, rope_base: float = 10000.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.rope_base = rope_base
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * self.head_dim, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor, cache: Optional[LayerCache] = None):
        b, n, c = x.shape
        q = self.to_q(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        k, v = self.to_kv(x).unsqueeze(1).chunk(2, dim=-1)

        if cache is not None:
            k = torch.cat((cache.keys, k), dim=2)
            v = torch.cat((cache.values, v), dim=2)

        total = k.shape[2]
        positions = torch.arange(total, device=x.device)
        q = rotary(q, positions[total - n :], self.rope_base)
        k = rotary(k, positions, self.rope_base)
        new_cache = LayerCache(k, v)

        visible = positions[None, :] <= positions[total - n :, None]
        out = F.scaled_dot_product_attention(
            q,
            k.expand(-1, self.num_heads, -1, -1),
            v.expand(-1, self.num_heads, -1, -1),
            attn_mask=visible,
        )
        out = out.transpose(1, 2).reshape(b, n, c)
        return self.to_out(out), new_cache
