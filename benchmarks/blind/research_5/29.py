import math
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


def alibi_slopes(num_heads: int) -> torch.Tensor:
    def power_of_two(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start ** i for i in range(n)]

    if math.log2(num_heads).is_integer():
        slopes = power_of_two(num_heads)
    else:
        closest = 2 ** math.floor(math.log2(num_heads))
        slopes = power_of_two(closest) + power_of_two(2 * closest)[0::2][: num_heads - closest]
    return torch.tensor(slopes)


class AlibiEncoderLayer(nn.Module):
    """Bidirectional encoder layer with ALiBi: nearby tokens are preferred over distant ones.

    Args:
        x: ``[B, T, dim]``
        attention_mask: ``[B, T]``, 1 for tokens and 0 for padding
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, ffn_dim: int = 256, dropout: float = 0.1):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.wqkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, dim)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("slopes", alibi_slopes(num_heads).view(1, num_heads, 1, 1), persistent=False)

    def _position_bias(self, length: int) -> torch.Tensor:
        pos = torch.arange(length, device=self.slopes.device)
        relative = pos[None, :] - pos[:, None]
        return self.slopes * relative

    def forward(self, x: torch.Tensor, attention_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        b, t, d = x.shape
        h = self.norm1(x)
        q, k, v = self.wqkv(h).view(b, t, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        scores = scores + self._position_bias(t)
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask[:, None, None, :] == 0, torch.finfo(scores.dtype).min)
        weights = self.dropout(scores.softmax(dim=-1))
        h = (weights @ v).transpose(1, 2).reshape(b, t, d)
        x = x + self.dropout(self.out(h))
        return x + self.dropout(self.fc2(F.gelu(self.fc1(self.norm2(x)))))
