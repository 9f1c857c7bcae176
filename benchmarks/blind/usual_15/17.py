"""Positions without position embeddings: ALiBi."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def get_slopes(n):
    def power_of_two(m):
        start = 2 ** (-(2 ** -(math.log2(m) - 3)))
        return [start * start ** i for i in range(m)]

    if math.log2(n).is_integer():
        return power_of_two(n)
    closest = 2 ** math.floor(math.log2(n))
    return power_of_two(closest) + get_slopes(2 * closest)[0::2][: n - closest]


class AlibiAttention(nn.Module):
    def __init__(self, embed_dim=64, num_heads=8, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.register_buffer("slopes", torch.tensor(get_slopes(num_heads)).view(-1, 1, 1))

    def alibi(self, t, device):
        pos = torch.arange(t, device=device)
        distance = (pos[:, None] - pos[None, :]).clamp(min=0)
        return self.slopes * distance

    def forward(self, x):
        b, t, e = x.shape
        q, k, v = self.in_proj(x).chunk(3, dim=-1)
        q = q.view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        k = k.view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        v = v.view(b, t, self.num_heads, self.head_dim).transpose(1, 2)

        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        scores = scores + self.alibi(t, x.device)
        future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
        attn = F.dropout(scores.softmax(-1), self.dropout, self.training)
        return self.out_proj((attn @ v).transpose(1, 2).reshape(b, t, e))
