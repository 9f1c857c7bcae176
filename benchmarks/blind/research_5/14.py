import torch
import torch.nn as nn


class PagedDecodeAttention(nn.Module):
    """Single-token decoding on a paged KV cache.

    Physical pages are shared by all requests. ``block_tables[b, i]`` is the page that holds the
    tokens ``i * block_size ... (i + 1) * block_size - 1`` of request ``b``; unused entries of the
    table may hold any valid page number. Pages are handed from finished requests to new ones
    without being cleared.
    """

    def __init__(self, hidden_size=64, num_heads=4, block_size=4, num_blocks=32):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.block_size = block_size
        self.scale = self.head_dim ** -0.5
        self.qkv_proj = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        shape = (num_blocks, block_size, num_heads, self.head_dim)
        self.register_buffer("key_cache", torch.zeros(shape), persistent=False)
        self.register_buffer("value_cache", torch.zeros(shape), persistent=False)

    def _store(self, k, v, block_tables, positions):
        page = block_tables.gather(1, (positions // self.block_size).unsqueeze(1)).squeeze(1)
        slot = positions % self.block_size
        self.key_cache[page, slot] = k.detach()
        self.value_cache[page, slot] = v.detach()

    def forward(self, hidden, block_tables, context_lens):
        """
        hidden:       [B, hidden_size], the current token of each request
        block_tables: [B, max_pages] long
        context_lens: [B] long, number of tokens already in the cache
        """
        bsz = hidden.size(0)
        q, k, v = self.qkv_proj(hidden).view(bsz, 3, self.num_heads, self.head_dim).unbind(1)
        self._store(k, v, block_tables, context_lens)

        seq_lens = context_lens + 1
        used_pages = (seq_lens + self.block_size - 1) // self.block_size

        keys = self.key_cache[block_tables].flatten(1, 2)
        values = self.value_cache[block_tables].flatten(1, 2)

        pages = torch.arange(block_tables.size(1), device=hidden.device)
        valid = pages[None, :] < used_pages[:, None]
        valid = valid.repeat_interleave(self.block_size, dim=1)

        logits = torch.einsum("bhd,bthd->bht", q, keys) * self.scale
        logits = logits.masked_fill(~valid[:, None, :], float("-inf"))
        out = torch.einsum("bht,bthd->bhd", logits.softmax(dim=-1), values)
        return self.o_proj(out.reshape(bsz, -1))
