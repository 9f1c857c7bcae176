from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class LayerCache:
    k: Optional[torch.Tensor] = None
    v: Optional[torch.Tensor] = None

    @property
    def length(self) -> int:
        return 0 if self.k is None else self.k.shape[2]

    def append(self, k, v):
        self.k = k if self.k is None else torch.cat([self.k, k], dim=2)
        self.v = v if self.v is None else torch.cat([self.v, v], dim=2)
        return self.k, self.v


class IncrementalAttention(nn.Module):
    """Causal multi-query attention that can continue from a :class:`LayerCache`.

    A single new token sees everything in the cache and needs no mask; a chunk of several new
    tokens (speculative decoding, chunked prefill) gets an explicit one, since ``is_causal``
    aligns the triangle to the top left corner.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.q = nn.Linear(dim, dim, bias=False)
        self.kv = nn.Linear(dim, 2 * self.head_dim, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)

    def forward(self, x: torch.Tensor, cache: Optional[LayerCache] = None) -> torch.Tensor:
        b, n, _ = x.shape
        q = self.q(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        k, v = self.kv(x).unsqueeze(1).chunk(2, dim=-1)

        past = 0
        if cache is not None:
            past = cache.length
            k, v = cache.append(k, v)
        k = k.expand(-1, self.num_heads, -1, -1)
        v = v.expand(-1, self.num_heads, -1, -1)

        if n == 1:
            out = F.scaled_dot_product_attention(q, k, v)
        elif past == 0:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            i = torch.arange(past, past + n, device=x.device)
            j = torch.arange(past + n, device=x.device)
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=j[None, :] <= i[:, None])
        return self.o(out.transpose(1, 2).reshape(b, n, -1))
