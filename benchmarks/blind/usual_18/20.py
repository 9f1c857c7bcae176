import math

import torch
import torch.nn as nn


def get_alibi_slopes(n_heads: int):
    def power_of_2(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start ** i for i in range(n)]

    if math.log2(n_heads).is_integer():
        return power_of_2(n_heads)
    closest = 2 ** math.floor(math.log2(n_heads))
    return power_of_2(closest) + get_alibi_slopes(2 * closest)[0::2][: n_heads - closest]


class ALiBiAttention(nn.Module):
    """Causal self-attention with linear biases (Press et al., "Train Short, Test Long")."""

    def __init__(self, d_model: int = 64, n_heads: int = 4, dropout: float = 0.0):
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)
        self.drop = nn.Dropout(dropout)
        self.register_buffer("slopes", torch.tensor(get_alibi_slopes(n_heads)), persistent=False)

    def alibi_bias(self, n, device, dtype):
        pos = torch.arange(n, device=device)
        distance = (pos[:, None] - pos[None, :]).to(dtype)
        return self.slopes.to(dtype)[:, None, None] * distance

    def forward(self, x):
        bsz, n, d = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (t.view(bsz, n, self.n_heads, self.d_head).transpose(1, 2) for t in (q, k, v))

        logits = q @ k.transpose(-1, -2) / math.sqrt(self.d_head)
        logits = logits + self.alibi_bias(n, x.device, logits.dtype)
        causal = torch.triu(torch.ones(n, n, dtype=torch.bool, device=x.device), diagonal=1)
        logits = logits.masked_fill(causal, float("-inf"))

        probs = self.drop(logits.softmax(dim=-1))
        y = (probs @ v).transpose(1, 2).contiguous().view(bsz, n, d)
        return self.out(y)
