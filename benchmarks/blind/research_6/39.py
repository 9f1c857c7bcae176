import torch
import torch.nn as nn


class PagedDecodeAttention(nn.Module):
    """Single-token decoding on a paged KV cache.

    The cache is a pool of blocks; ``block_tables`` [B, M] lists the blocks of every
    sequence, logical position p lives in block ``p // block_size`` at slot
    ``p % block_size``. Blocks are recycled between requests and are never cleared.

    ``context_lens`` [B] counts the tokens of a sequence including the one that is being
    decoded in this call.
    """

    def __init__(self, dim=64, num_heads=4, num_blocks=64, block_size=8):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.block_size = block_size
        self.scale = self.head_dim ** -0.5
        self.qkv_proj = nn.Linear(dim, 3 * dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)
        shape = (num_blocks, block_size, num_heads, self.head_dim)
        self.register_buffer("k_cache", torch.zeros(shape), persistent=False)
        self.register_buffer("v_cache", torch.zeros(shape), persistent=False)

    def write(self, k, v, block_tables, positions):
        block = block_tables.gather(1, (positions // self.block_size).unsqueeze(1)).squeeze(1)
        slot = positions % self.block_size
        self.k_cache[block, slot] = k
        self.v_cache[block, slot] = v

    @torch.no_grad()
    def forward(self, x, block_tables, context_lens):
        """x: [B, dim], the newest token of every sequence."""
        B = x.size(0)
        q, k, v = self.qkv_proj(x).view(B, 3, self.num_heads, self.head_dim).unbind(1)
        self.write(k, v, block_tables, context_lens - 1)

        # [B, M, block_size, H, D] -> [B, M * block_size, H, D]
        keys = self.k_cache[block_tables].flatten(1, 2)
        values = self.v_cache[block_tables].flatten(1, 2)

        scores = torch.einsum("bhd,bshd->bhs", q * self.scale, keys)
        slots = torch.arange(keys.size(1), device=x.device)
        valid = slots[None, :] <= context_lens[:, None]
        scores = scores.masked_fill(~valid[:, None, :], float("-inf"))

        out = torch.einsum("bhs,bshd->bhd", scores.softmax(dim=-1), values)
        return self.o_proj(out.reshape(B, -1))
