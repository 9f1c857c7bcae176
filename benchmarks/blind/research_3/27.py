import math
from typing import List, Optional

import torch
from torch import nn


def get_slopes(n: int) -> List[float]:
    def power_of_2(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start ** i for i in range(n)]

    if math.log2(n).is_integer():
        return power_of_2(n)
    closest = 2 ** math.floor(math.log2(n))
    return power_of_2(closest) + get_slopes(2 * closest)[0::2][: n - closest]


class AlibiEncoderAttention(nn.Module):
    """Bidirectional self attention for the text encoder. Positions enter only as a
    penalty that grows linearly with the distance between query and key.

    padding_mask: bool [B, T], True = padding.
    """

    def __init__(self, embed_dim: int = 64, num_heads: int = 8, dropout: float = 0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("slopes", torch.tensor(get_slopes(num_heads)), persistent=False)

    def position_bias(self, length: int) -> torch.Tensor:
        idx = torch.arange(length, device=self.slopes.device)
        distance = idx[None, :] - idx[:, None]
        return distance[None].to(self.slopes.dtype) * self.slopes[:, None, None]

    def forward(self, x: torch.Tensor, padding_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        B, T, D = x.shape
        q, k, v = self.in_proj(x).chunk(3, dim=-1)
        q = q.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        k = k.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        v = v.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)

        scores = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim)
        scores = scores + self.position_bias(T).unsqueeze(0)
        if padding_mask is not None:
            scores = scores.masked_fill(padding_mask[:, None, None, :], float("-inf"))

        probs = self.dropout(scores.softmax(dim=-1))
        out = (probs @ v).transpose(1, 2).reshape(B, T, D)
        return self.out_proj(out)
