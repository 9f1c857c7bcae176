from typing import Optional

import torch
import torch.nn as nn


class PagedDecodeAttention(nn.Module):
    """One decoding step of self-attention over a paged key/value cache (inference only).

    The cache is a pool of blocks of ``block_size`` slots. Logical block ``j`` of request ``b`` lies in physical
    block ``block_tables[b, j]``. Blocks are handed out again without being cleared.

    Args:
        dim: model width.
        num_heads: number of heads.
        num_blocks: blocks in the pool.
        block_size: slots in a block.
    """

    def __init__(self, dim: int = 128, num_heads: int = 4, num_blocks: int = 64, block_size: int = 8):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.block_size = block_size
        self.qkv_proj = nn.Linear(dim, 3 * dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)
        pool = (num_blocks, block_size, num_heads, self.head_dim)
        self.register_buffer("k_pool", torch.zeros(pool), persistent=False)
        self.register_buffer("v_pool", torch.zeros(pool), persistent=False)

    @torch.no_grad()
    def forward(
        self,
        x: torch.Tensor,
        seq_lens: torch.Tensor,
        block_tables: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        """
        Args:
            x: [B, dim], the state of the newest token of each request.
            seq_lens: [B], tokens of each request which are already in the cache (the newest one is not).
            block_tables: [B, blocks per request]; by default the pool is divided evenly.
        """
        bsz = x.size(0)
        if block_tables is None:
            per_request = self.k_pool.size(0) // bsz
            block_tables = torch.arange(bsz * per_request, device=x.device).view(bsz, per_request)

        q, k, v = self.qkv_proj(x).view(bsz, 3, self.num_heads, self.head_dim).unbind(1)
        logical = (seq_lens // self.block_size).unsqueeze(1)
        block = block_tables.gather(1, logical).squeeze(1)
        slot = seq_lens % self.block_size
        self.k_pool[block, slot] = k
        self.v_pool[block, slot] = v

        keys = self.k_pool[block_tables].flatten(1, 2)
        values = self.v_pool[block_tables].flatten(1, 2)
        scores = torch.einsum("bhd,bshd->bhs", q, keys) * self.head_dim**-0.5

        context_lens = seq_lens + 1
        positions = torch.arange(keys.size(1), device=x.device)
        inside = positions[None, :] <= context_lens[:, None]
        scores = scores.masked_fill(~inside[:, None, :], float("-inf"))
        out = torch.einsum("bhs,bshd->bhd", scores.softmax(dim=-1), values)
        return self.o_proj(out.reshape(bsz, -1))
