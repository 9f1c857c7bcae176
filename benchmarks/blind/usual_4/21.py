import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class CosineSelfAttention(nn.Module):
    """Self-attention on cosine similarities: queries and keys are brought to unit length and the
    logits are multiplied by a learned temperature per head."""

    def __init__(self, dim=64, num_heads=4, init_scale=10.0, max_scale=100.0, bias=False):
        super().__init__()
        assert dim % num_heads == 0, "dim must be divisible by num_heads"
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.to_qkv = nn.Linear(dim, dim * 3, bias=bias)
        self.to_out = nn.Linear(dim, dim, bias=bias)
        self.logit_scale = nn.Parameter(torch.full((num_heads, 1, 1), math.log(init_scale)))
        self.log_max = math.log(max_scale)

    def forward(self, x, causal=False):
        b, n, _ = x.shape
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q = q.view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        k = k.view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        v = v.view(b, n, self.num_heads, self.head_dim).transpose(1, 2)

        q = F.normalize(q)
        k = F.normalize(k)
        scale = self.logit_scale.clamp(max=self.log_max).exp()
        sim = torch.matmul(q, k.transpose(-1, -2)) * scale

        if causal:
            mask = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
            sim = sim.masked_fill(mask, float("-inf"))

        out = torch.matmul(sim.softmax(dim=-1), v)
        return self.to_out(out.transpose(1, 2).contiguous().view(b, n, -1))
