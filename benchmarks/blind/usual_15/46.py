import math

import torch
import torch.nn as nn


class TopKAttention(nn.Module):
    """Causal attention in which each query keeps its `topk` best visible keys."""

    def __init__(self, dim=64, num_heads=4, topk=8):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.topk = topk
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def _split(self, t):
        return t.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def forward(self, x):
        n = x.size(1)
        q, k, v = self._split(self.to_q(x)), self._split(self.to_k(x)), self._split(self.to_v(x))
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim)
        neg = torch.finfo(scores.dtype).min

        if self.topk < n:
            kth = scores.topk(self.topk, dim=-1).values[..., -1:]
            drop = scores < kth
            # the diagonal always stays, so that no row is empty
            drop = drop & ~torch.eye(n, dtype=torch.bool, device=x.device)
            scores = scores.masked_fill(drop, neg)

        causal = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(causal, neg)
        out = scores.softmax(dim=-1) @ v
        return self.to_out(out.transpose(1, 2).flatten(2))
