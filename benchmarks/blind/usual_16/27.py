from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class StaticCache(nn.Module):
    def __init__(self, max_batch, n_heads, max_len, head_dim):
        super().__init__()
        self.register_buffer("k", torch.zeros(max_batch, n_heads, max_len, head_dim), persistent=False)
        self.register_buffer("v", torch.zeros(max_batch, n_heads, max_len, head_dim), persistent=False)

    def update(self, pos, k, v):
        b = k.size(0)
        self.k[:b, :, pos] = k.detach().to(self.k.dtype)
        self.v[:b, :, pos] = v.detach().to(self.v.dtype)
        return self.k[:b], self.v[:b]


class CachedAttention(nn.Module):
    """Causal attention for fixed-shape decoding.

    With ``input_pos`` given (inference), keys and values are written into a preallocated buffer and
    the query attends over the whole buffer; slots that are not filled yet lie in the future
    of every query and are hidden by the rows of the causal mask taken at ``input_pos``.
    Without it the layer is plain causal attention and the cache is not touched.
    """

    def __init__(self, dim: int = 64, n_heads: int = 4, max_len: int = 64, max_batch: int = 8):
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = dim // n_heads
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.cache = StaticCache(max_batch, n_heads, max_len, self.head_dim)
        causal = torch.tril(torch.ones(max_len, max_len, dtype=torch.bool))
        self.register_buffer("causal_mask", causal, persistent=False)

    def forward(self, x: torch.Tensor, input_pos: Optional[torch.Tensor] = None) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.wqkv(x).split(d, dim=-1)
        q, k, v = (z.view(b, t, self.n_heads, self.head_dim).transpose(1, 2) for z in (q, k, v))
        if input_pos is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            k, v = self.cache.update(input_pos, k, v)
            mask = self.causal_mask[None, None, input_pos]
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.wo(y.transpose(1, 2).reshape(b, t, d))
