import math

import torch
import torch.nn as nn


def get_slopes(n):
    if math.log2(n).is_integer():
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start ** i for i in range(n)]
    closest = 2 ** math.floor(math.log2(n))
    return get_slopes(closest) + get_slopes(2 * closest)[0::2][: n - closest]


class AlibiEncoderAttention(nn.Module):
    """Bidirectional self-attention with ALiBi in place of position embeddings (speech and text encoders).

    Args:
        x: [B, T, dim]
        padding_mask: [B, T], True at padding
    """

    def __init__(self, dim=64, num_heads=4, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.in_proj = nn.Linear(dim, 3 * dim)
        self.out_proj = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("slopes", torch.tensor(get_slopes(num_heads)).view(-1, 1, 1), persistent=False)

    def forward(self, x, padding_mask=None):
        b, t, d = x.shape
        q, k, v = self.in_proj(x).view(b, t, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        pos = torch.arange(t, device=x.device)
        distance = (pos[:, None] - pos[None, :]).to(x.dtype)
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim)
        scores = scores - self.slopes * distance
        if padding_mask is not None:
            scores = scores.masked_fill(padding_mask[:, None, None, :], float("-inf"))
        probs = self.dropout(torch.softmax(scores, dim=-1))
        return self.out_proj((probs @ v).transpose(1, 2).reshape(b, t, d))
