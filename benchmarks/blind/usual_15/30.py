import math

import torch
import torch.nn as nn


class SlidingWindowAttention(nn.Module):
    """Decoder self-attention in which a token sees itself and the `window - 1` tokens before it.

    Mistral-style local attention for the language model of chapter 7.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, window: int = 8):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.window = window
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def build_mask(self, t: int, device) -> torch.Tensor:
        i = torch.arange(t, device=device)
        offset = i.unsqueeze(1) - i.unsqueeze(0)
        return offset.abs() < self.window

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        att = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim)
        att = att.masked_fill(~self.build_mask(t, x.device), float("-inf"))
        att = att.softmax(dim=-1)
        return self.out((att @ v).transpose(1, 2).reshape(b, t, c))
