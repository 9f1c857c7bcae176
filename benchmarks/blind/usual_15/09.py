"""Chapter 6: generation with a key/value cache that is allocated once."""
import math

import torch
import torch.nn as nn


class CachedAttention(nn.Module):
    """Causal attention.

    With `start_pos` the chunk `x` is taken to follow what is already in the
    cache; call with start_pos=0 for the prompt and then with the running position.
    """

    def __init__(self, dim=64, num_heads=4, max_batch=8, max_len=128):
        super().__init__()
        self.h, self.d = num_heads, dim // num_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.register_buffer("cache_k", torch.zeros(max_batch, max_len, self.h, self.d), persistent=False)
        self.register_buffer("cache_v", torch.zeros(max_batch, max_len, self.h, self.d), persistent=False)

    @torch.no_grad()
    def forward(self, x, start_pos=0):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.h, self.d)
        k = self.wk(x).view(b, t, self.h, self.d)
        v = self.wv(x).view(b, t, self.h, self.d)

        end = start_pos + t
        self.cache_k[:b, start_pos:end] = k
        self.cache_v[:b, start_pos:end] = v
        keys = self.cache_k[:b, :end].transpose(1, 2)
        values = self.cache_v[:b, :end].transpose(1, 2)

        scores = q.transpose(1, 2) @ keys.transpose(2, 3) / math.sqrt(self.d)
        if t > 1:
            mask = torch.ones(t, end, dtype=torch.bool, device=x.device).tril()
            scores = scores.masked_fill(~mask, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        y = (weights @ values).transpose(1, 2).reshape(b, t, -1)
        return self.wo(y)
