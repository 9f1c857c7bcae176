import torch
import torch.nn as nn


class PagedDecodeAttention(nn.Module):
    """One decoding step of grouped-query attention on a paged KV cache.

    The cache is a pool of blocks which the scheduler hands out to sequences and takes back when they finish;
    blocks are not cleared between owners.

    Args:
        x: (batch, dim), the hidden state of the newest token of every sequence.
        block_tables: (batch, max_blocks) long, physical block of each logical block, -1 where there is none.
        context_lens: (batch,) long, tokens that are already in the cache.
    """

    def __init__(self, dim=64, num_heads=4, num_kv_heads=2, num_blocks=64, block_size=16, rope_theta=10000.0):
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.head_dim = dim // num_heads
        self.block_size = block_size
        self.q_proj = nn.Linear(dim, num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(dim, num_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(dim, num_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * self.head_dim, dim, bias=False)
        shape = (num_blocks, block_size, num_kv_heads, self.head_dim)
        self.register_buffer("k_cache", torch.zeros(shape), persistent=False)
        self.register_buffer("v_cache", torch.zeros(shape), persistent=False)
        inv_freq = rope_theta ** (-torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def _rope(self, x, positions):
        angle = positions.float()[:, None, None] * self.inv_freq
        cos, sin = angle.cos(), angle.sin()
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    @torch.no_grad()
    def forward(self, x, block_tables, context_lens):
        B = x.size(0)
        q = self.q_proj(x).view(B, self.num_heads, self.head_dim)
        k = self.k_proj(x).view(B, self.num_kv_heads, self.head_dim)
        v = self.v_proj(x).view(B, self.num_kv_heads, self.head_dim)
        q, k = self._rope(q, context_lens), self._rope(k, context_lens)

        logical = torch.div(context_lens, self.block_size, rounding_mode="floor")
        block = block_tables.gather(1, logical[:, None]).squeeze(1)
        offset = context_lens % self.block_size
        self.k_cache[block, offset] = k
        self.v_cache[block, offset] = v

        pages = block_tables.clamp(min=0)
        keys = self.k_cache[pages].flatten(1, 2)
        values = self.v_cache[pages].flatten(1, 2)
        group = self.num_heads // self.num_kv_heads
        keys = keys.repeat_interleave(group, dim=2)
        values = values.repeat_interleave(group, dim=2)

        scores = torch.einsum("bhd,bshd->bhs", q, keys) * self.head_dim ** -0.5
        valid = (block_tables >= 0).repeat_interleave(self.block_size, dim=1)
        scores = scores.masked_fill(~valid[:, None, :], float("-inf"))
        probs = torch.softmax(scores, dim=-1)
        out = torch.einsum("bhs,bshd->bhd", probs, values)
        return self.o_proj(out.reshape(B, -1))
