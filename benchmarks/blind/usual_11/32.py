import torch
import torch.nn as nn


class CachedAttention(nn.Module):
    """
    Causal attention for generation with preallocated key/value buffers.

    Call it with the prompt and ``start_pos=0``, then with the next token(s) and ``start_pos`` set to the
    number of tokens seen so far. Starting at 0 again simply overwrites the old content: only the slots
    up to ``start_pos + n`` are ever read. Inference only, the cache holds no graph.
    """

    def __init__(self, dim=64, num_heads=4, max_batch=8, max_len=128):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.max_len = max_len
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        shape = (max_batch, num_heads, max_len, self.head_dim)
        self.register_buffer("cache_k", torch.empty(shape), persistent=False)
        self.register_buffer("cache_v", torch.empty(shape), persistent=False)

    @torch.no_grad()
    def forward(self, x, start_pos=0):
        b, n, dim = x.shape
        end = start_pos + n
        if end > self.max_len:
            raise ValueError(f"cache holds {self.max_len} tokens, asked for {end}")

        q, k, v = self.wqkv(x).view(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        self.cache_k[:b, :, start_pos:end] = k
        self.cache_v[:b, :, start_pos:end] = v
        keys = self.cache_k[:b, :, :end]
        values = self.cache_v[:b, :, :end]

        scores = q @ keys.transpose(-2, -1) * self.head_dim ** -0.5
        if n > 1:
            # a single new token sees all slots that are read, so it needs no mask
            blocked = torch.ones(n, end, dtype=torch.bool, device=x.device).triu(start_pos + 1)
            scores = scores.masked_fill(blocked, float("-inf"))
        out = scores.softmax(dim=-1) @ values
        return self.wo(out.transpose(1, 2).reshape(b, n, dim))
