from typing import Optional

import torch
from torch import Tensor, nn
import torch.nn.functional as F


class KVCache(nn.Module):
    def __init__(self, max_batch: int, num_heads: int, max_len: int, head_dim: int):
        super().__init__()
        shape = (max_batch, num_heads, max_len, head_dim)
        self.register_buffer("k", torch.zeros(shape), persistent=False)
        self.register_buffer("v", torch.zeros(shape), persistent=False)

    def update(self, start: int, k: Tensor, v: Tensor):
        b, _, t, _ = k.shape
        self.k[:b, :, start:start + t] = k.detach()
        self.v[:b, :, start:start + t] = v.detach()
        return self.k[:b, :, :start + t], self.v[:b, :, :start + t]


class InferenceAttention(nn.Module):
    """Causal attention with a preallocated cache.

    ``start_pos`` is the number of tokens that were fed before. With ``start_pos=None`` the
    cache is not touched (training). A new sequence begins with ``start_pos=0``: whatever an
    earlier sequence left beyond the current end is never read.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, max_batch: int = 8, max_len: int = 64):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.wqkv = nn.Linear(dim, dim * 3, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.cache = KVCache(max_batch, num_heads, max_len, self.head_dim)

    def forward(self, x: Tensor, start_pos: Optional[int] = None) -> Tensor:
        b, t, dim = x.shape
        q, k, v = self.wqkv(x).split(dim, dim=-1)
        q = q.view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        k = k.view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        v = v.view(b, t, self.num_heads, self.head_dim).transpose(1, 2)

        offset = 0
        if start_pos is not None:
            offset = start_pos
            k, v = self.cache.update(start_pos, k, v)

        q_pos = torch.arange(offset, offset + t, device=x.device)
        k_pos = torch.arange(k.size(2), device=x.device)
        mask = k_pos[None, :] <= q_pos[:, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.wo(y.transpose(1, 2).reshape(b, t, dim))
