import torch
import torch.nn as nn


class PagedAttention(nn.Module):
    """Decoding step of causal attention on a paged key/value cache.

    The cache is one pool of blocks shared by all sequences. ``block_tables`` [B, max_blocks] lists the blocks
    of each sequence in the order of the text (unused entries: 0); position p of a sequence lives in slot
    ``p % block_size`` of its block number ``p // block_size``.

    ``context_lens`` [B] is the length of each sequence including the token of this step.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, num_blocks: int = 64, block_size: int = 4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.block_size = block_size
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        shape = (num_blocks, block_size, num_heads, self.head_dim)
        self.register_buffer("key_cache", torch.zeros(shape), persistent=False)
        self.register_buffer("value_cache", torch.zeros(shape), persistent=False)

    def _write(self, k, v, block_tables, positions):
        block = block_tables.gather(1, (positions // self.block_size)[:, None]).squeeze(1)
        slot = positions % self.block_size
        self.key_cache[block, slot] = k
        self.value_cache[block, slot] = v

    @torch.no_grad()
    def forward(self, x: torch.Tensor, block_tables: torch.Tensor, context_lens: torch.Tensor) -> torch.Tensor:
        B = x.shape[0]
        q, k, v = self.qkv(x.view(B, -1)).view(B, 3, self.num_heads, self.head_dim).unbind(1)
        self._write(k, v, block_tables, context_lens - 1)

        keys = self.key_cache[block_tables].flatten(1, 2)
        values = self.value_cache[block_tables].flatten(1, 2)

        scores = torch.einsum("bhd,blhd->bhl", q, keys) * self.head_dim ** -0.5
        index = torch.arange(keys.shape[1], device=x.device)
        valid = index[None, :] <= context_lens[:, None]
        scores = scores.masked_fill(~valid[:, None, :], float("-inf"))
        y = torch.einsum("bhl,blhd->bhd", scores.softmax(dim=-1), values)
        return self.out(y.reshape(B, 1, -1))
