import math

import torch
from torch import nn


def get_slopes(n):
    """Slopes of the ALiBi paper."""

    def get_slopes_power_of_2(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start ** i for i in range(n)]

    if math.log2(n).is_integer():
        return get_slopes_power_of_2(n)
    closest = 2 ** math.floor(math.log2(n))
    return get_slopes_power_of_2(closest) + get_slopes(2 * closest)[0::2][: n - closest]


class ALiBiCausalAttention(nn.Module):
    """Attention with linear biases (Press et al., 2022) instead of position embeddings."""

    def __init__(self, d_model: int = 64, num_heads: int = 8, dropout: float = 0.0):
        super().__init__()
        self.num_heads = num_heads
        self.scale = math.sqrt(d_model // num_heads)
        self.register_buffer("m", torch.tensor(get_slopes(num_heads)).view(num_heads, 1, 1))
        self.kqv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.proj = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    @staticmethod
    def get_relative_positions(seq_len: int, device) -> torch.Tensor:
        x = torch.arange(seq_len, device=device)[None, :]
        y = torch.arange(seq_len, device=device)[:, None]
        return y - x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch_size, seq_len, d_model = x.shape
        key, query, value = self.kqv(x).chunk(3, dim=-1)
        key = key.view(batch_size, seq_len, self.num_heads, -1).permute(0, 2, 3, 1)
        query = query.view(batch_size, seq_len, self.num_heads, -1).transpose(1, 2)
        value = value.view(batch_size, seq_len, self.num_heads, -1).transpose(1, 2)

        bias = self.m * self.get_relative_positions(seq_len, x.device)
        score = torch.matmul(query, key) / self.scale + bias
        future = torch.ones(seq_len, seq_len, dtype=torch.bool, device=x.device).triu(1)
        score = score.masked_fill(future, float("-inf"))

        attn = self.dropout(score.softmax(dim=-1))
        out = torch.matmul(attn, value).transpose(1, 2).reshape(batch_size, seq_len, -1)
        return self.proj(out)
