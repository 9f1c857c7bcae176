"""Attention as a popular tutorial has it, with one mistake. The doctor names it:

headwise doctor examples/my_attention.py:MyAttention --set embed_size=64 --set heads=8
"""

import torch
from torch import nn

import headwise


class MyAttention(nn.Module):
    """Multi-head self-attention. mask: [batch, 1, query, key], 0 = hidden."""

    def __init__(self, embed_size: int, heads: int) -> None:
        super().__init__()
        self.embed_size, self.heads = embed_size, heads
        self.query, self.key, self.value, self.out = (nn.Linear(embed_size, embed_size) for _ in range(4))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (f(x).view(batch, length, self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = q @ k.transpose(-2, -1) / self.embed_size**0.5
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, -1))


if __name__ == "__main__":
    print(headwise.diagnose(MyAttention(64, heads=8)))
