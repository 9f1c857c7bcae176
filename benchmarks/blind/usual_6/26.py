import math

import torch
from torch import nn
import torch.nn.functional as F


class QKNormAttention(nn.Module):
    """Self-attention with cosine-similarity scores.

    Queries and keys are brought to unit length and the scores are multiplied by a
    learned factor per head (Henry et al., "Query-Key Normalization for Transformers").
    """

    def __init__(self, dim=64, heads=4, init_scale=10.0, causal=False):
        super().__init__()
        assert dim % heads == 0, "dim must be divisible by heads"
        self.heads = heads
        self.causal = causal
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.log_scale = nn.Parameter(torch.full((heads, 1, 1), math.log(init_scale)))
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q = q.view(b, n, self.heads, -1).transpose(1, 2)
        k = k.view(b, n, self.heads, -1).transpose(1, 2)
        v = v.view(b, n, self.heads, -1).transpose(1, 2)

        q = F.normalize(q)
        k = F.normalize(k)

        sim = (q @ k.transpose(-2, -1)) * self.log_scale.exp()
        if self.causal:
            sim = sim.masked_fill(torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1), float('-inf'))
        out = sim.softmax(dim=-1) @ v
        return self.proj(out.transpose(1, 2).reshape(b, n, d))
