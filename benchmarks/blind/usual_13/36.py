import math

import torch
import torch.nn as nn


class IncrementalAttention(nn.Module):
    """Causal attention that can decode step by step.

    ``forward(x)`` processes a whole sequence. ``forward(x, use_cache=True)`` processes the
    next tokens of a sequence and remembers their keys and values until ``reset()``.
    """

    def __init__(self, dim=64, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.in_proj = nn.Linear(dim, 3 * dim)
        self.out_proj = nn.Linear(dim, dim)
        self.cached_k = None
        self.cached_v = None

    def reset(self):
        self.cached_k = None
        self.cached_v = None

    def forward(self, x, use_cache=False):
        b, t, d = x.shape
        q, k, v = self.in_proj(x).chunk(3, dim=-1)
        q = q.view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        k = k.view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        v = v.view(b, t, self.num_heads, self.head_dim).transpose(1, 2)

        if self.cached_k is not None:
            k = torch.cat([self.cached_k, k], dim=2)
            v = torch.cat([self.cached_v, v], dim=2)
        if use_cache:
            self.cached_k, self.cached_v = k.detach(), v.detach()

        s = k.size(2)
        blocked = torch.ones(t, s, dtype=torch.bool, device=x.device).triu(s - t + 1)
        att = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        att = att.masked_fill(blocked, float("-inf")).softmax(dim=-1)
        y = (att @ v).transpose(1, 2).reshape(b, t, d)
        return self.out_proj(y)
