import math

import torch
import torch.nn as nn


def get_slopes(n):
    def power_of_2(m):
        start = 2 ** (-(2 ** -(math.log2(m) - 3)))
        return [start * start ** i for i in range(m)]

    if math.log2(n).is_integer():
        return power_of_2(n)
    closest = 2 ** math.floor(math.log2(n))
    return power_of_2(closest) + get_slopes(2 * closest)[0::2][: n - closest]


class ALiBiAttention(nn.Module):
    """Causal self-attention with linear biases (Press et al., "Train Short, Test Long")."""

    def __init__(self, dim=128, num_heads=8, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.scale = math.sqrt(self.head_dim)
        self.query = nn.Linear(dim, dim, bias=False)
        self.key = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim, dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("m", torch.tensor(get_slopes(num_heads)).view(1, num_heads, 1, 1))

    def forward(self, x):
        batch_size, seq_len, dim = x.shape
        shape = (batch_size, seq_len, self.num_heads, self.head_dim)
        query = self.query(x).view(shape).transpose(1, 2)
        key = self.key(x).view(shape).permute(0, 2, 3, 1)
        value = self.value(x).view(shape).transpose(1, 2)

        pos = torch.arange(seq_len, device=x.device)
        bias = self.m * (pos[:, None] - pos[None, :])
        score = torch.matmul(query, key) / self.scale + bias
        score = score.masked_fill(pos[None, :] > pos[:, None], float("-inf"))

        attn = self.dropout(torch.softmax(score, dim=-1))
        out = torch.matmul(attn, value).transpose(1, 2).reshape(batch_size, seq_len, dim)
        return self.out(out)
