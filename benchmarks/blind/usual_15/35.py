"""Attention with normalised queries and keys (Henry et al., 2020)."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class QKNormAttention(nn.Module):
    """Cosine similarities of queries and keys times one learned temperature per head.

    `max_len` sets the initial temperature, log2(L^2 - L) as in the paper.
    """

    def __init__(self, dim=64, num_heads=4, max_len=128, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(dropout)
        g0 = math.log2(max_len ** 2 - max_len)
        self.g = nn.Parameter(torch.full((num_heads, 1, 1), g0))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        q = F.normalize(q)
        k = F.normalize(k)
        scores = self.g * (q @ k.transpose(-2, -1))
        causal = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(causal, float("-inf"))
        y = self.drop(scores.softmax(dim=-1)) @ v
        return self.proj(y.transpose(1, 2).reshape(b, t, c))
