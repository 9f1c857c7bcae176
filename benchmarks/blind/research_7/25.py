from typing import Tuple

import torch
import torch.nn as nn


class PagedDecodeAttention(nn.Module):
    """One decoding step over a paged key/value cache.

    x             [B, dim]            the new token of every running sequence
    block_tables  [B, max_blocks]     physical block of every logical block, -1 where unused
    context_lens  [B]                 tokens already in the cache, the new one excluded
    k_cache       [num_blocks, block_size, num_kv_heads, head_dim], same for v_cache

    The caches are updated in place. The block that receives the new token must be allocated.
    """

    def __init__(self, dim: int = 64, num_heads: int = 8, num_kv_heads: int = 2, block_size: int = 4, base: float = 10000.0):
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = dim // num_heads
        self.block_size = block_size
        self.scale = self.head_dim ** -0.5
        self.q_size = num_heads * self.head_dim
        self.kv_size = num_kv_heads * self.head_dim
        self.qkv_proj = nn.Linear(dim, self.q_size + 2 * self.kv_size, bias=False)
        self.o_proj = nn.Linear(self.q_size, dim, bias=False)
        inv_freq = base ** (-torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def new_cache(self, num_blocks: int) -> Tuple[torch.Tensor, torch.Tensor]:
        shape = (num_blocks, self.block_size, self.num_kv_heads, self.head_dim)
        w = self.o_proj.weight
        return w.new_zeros(shape), w.new_zeros(shape)

    def rotate(self, x, pos):
        angle = (pos.float()[:, None] * self.inv_freq)[:, None, :]
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)

    @torch.no_grad()
    def forward(self, x, block_tables, context_lens, k_cache, v_cache):
        B = x.size(0)
        q, k, v = self.qkv_proj(x).split([self.q_size, self.kv_size, self.kv_size], dim=-1)
        q = self.rotate(q.view(B, self.num_heads, self.head_dim), context_lens)
        k = self.rotate(k.view(B, self.num_kv_heads, self.head_dim), context_lens)
        v = v.view(B, self.num_kv_heads, self.head_dim)

        rows = torch.arange(B, device=x.device)
        block = block_tables[rows, context_lens // self.block_size]
        slot = context_lens % self.block_size
        k_cache[block, slot] = k
        v_cache[block, slot] = v

        tables = block_tables.clamp(min=0)
        keys = k_cache[tables].flatten(1, 2)      # B, max_blocks * block_size, kv_heads, d
        values = v_cache[tables].flatten(1, 2)
        seen = torch.arange(keys.size(1), device=x.device)[None, :] <= context_lens[:, None]

        q = q.view(B, self.num_kv_heads, self.num_heads // self.num_kv_heads, self.head_dim)
        scores = torch.einsum("bgrd,bsgd->bgrs", q, keys) * self.scale
        scores = scores.masked_fill(~seen[:, None, None, :], float("-inf"))
        out = torch.einsum("bgrs,bsgd->bgrd", scores.softmax(dim=-1), values)
        return self.o_proj(out.reshape(B, self.q_size))
