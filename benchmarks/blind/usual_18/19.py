from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class StaticCacheAttention(nn.Module):
    """Llama attention with a preallocated key/value cache.

    Without ``start_pos`` the module works on whole sequences and leaves the cache alone (training).
    With ``start_pos`` (an int) it is in inference mode: the new keys and values are written to
    ``[start_pos, start_pos + T)`` and the queries see everything up to their own position.  The cache is
    never cleared; a new sequence simply starts again at ``start_pos=0``, and whatever lies behind the
    write position is not read.
    """

    def __init__(self, dim=64, n_heads=4, n_kv_heads=2, max_batch=8, max_len=256, rope_theta=10000.0):
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.head_dim = dim // n_heads
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=False)

        inv = rope_theta ** (-torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim)
        angle = torch.outer(torch.arange(max_len, dtype=torch.float32), inv)
        self.register_buffer("rope_cos", angle.cos(), persistent=False)
        self.register_buffer("rope_sin", angle.sin(), persistent=False)

        shape = (max_batch, n_kv_heads, max_len, self.head_dim)
        self.register_buffer("cache_k", torch.zeros(shape), persistent=False)
        self.register_buffer("cache_v", torch.zeros(shape), persistent=False)

    def _rope(self, x, start):
        # interleaved pairs, as in the reference implementation of Llama
        cos = self.rope_cos[start:start + x.size(2)]
        sin = self.rope_sin[start:start + x.size(2)]
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).type_as(x)

    def forward(self, x: torch.Tensor, start_pos: Optional[int] = None) -> torch.Tensor:
        B, T, _ = x.shape
        start = 0 if start_pos is None else start_pos
        q = self.wq(x).view(B, T, self.n_heads, self.head_dim).transpose(1, 2)
        k = self.wk(x).view(B, T, self.n_kv_heads, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(B, T, self.n_kv_heads, self.head_dim).transpose(1, 2)
        q, k = self._rope(q, start), self._rope(k, start)

        if start_pos is not None:
            end = start + T
            self.cache_k[:B, :, start:end] = k.detach()
            self.cache_v[:B, :, start:end] = v.detach()
            k = self.cache_k[:B, :, :end].to(q.dtype)
            v = self.cache_v[:B, :, :end].to(q.dtype)

        q_pos = torch.arange(start, start + T, device=x.device)
        k_pos = torch.arange(k.size(2), device=x.device)
        mask = k_pos[None, :] <= q_pos[:, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return self.wo(y.transpose(1, 2).reshape(B, T, -1))
