import math

import torch
import torch.nn as nn


def get_slopes(n):
    def power_of_2(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start ** i for i in range(n)]

    if math.log2(n).is_integer():
        return power_of_2(n)
    closest = 2 ** math.floor(math.log2(n))
    return power_of_2(closest) + get_slopes(2 * closest)[0::2][: n - closest]


class AlibiAttention(nn.Module):
    """Causal attention with linear biases (ALiBi) instead of position embeddings."""

    def __init__(self, embed_dim=64, num_heads=4, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.qkv_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.attn_dropout = nn.Dropout(dropout)
        self.register_buffer("slopes", torch.tensor(get_slopes(num_heads)).view(-1, 1, 1), persistent=False)

    def alibi(self, n, device):
        pos = torch.arange(n, device=device)
        distance = pos.view(-1, 1) - pos.view(1, -1)
        return self.slopes * distance.clamp(min=0)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv_proj(x).chunk(3, dim=-1)
        q = q.view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        k = k.view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        v = v.view(b, n, self.num_heads, self.head_dim).transpose(1, 2)

        scores = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim)
        scores = scores + self.alibi(n, x.device).to(scores.dtype)
        causal = torch.triu(torch.ones(n, n, device=x.device, dtype=torch.bool), 1)
        scores = scores.masked_fill(causal, float("-inf"))
        weights = self.attn_dropout(scores.softmax(dim=-1))
        out = (weights @ v).transpose(1, 2).reshape(b, n, c)
        return self.out_proj(out)
