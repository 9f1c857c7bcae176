import math

import torch
import torch.nn as nn


class EncoderLayer(nn.Module):
    def __init__(self, dim, num_heads, dropout):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.norm_attn = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.norm_ff = nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.drop = nn.Dropout(dropout)

    def attend(self, x, mask):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)

        bias = mask[:, None, None, :]
        bias -= 1.0
        bias *= 1e9
        weights = torch.softmax(scores + bias, dim=-1)
        y = self.drop(weights) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, c))

    def forward(self, x, mask):
        x = x + self.drop(self.attend(self.norm_attn(x), mask))
        return x + self.drop(self.ff(self.norm_ff(x)))


class SequenceEncoder(nn.Module):
    """Pre-norm encoder over feature sequences.

    x: (B, T, dim)
    mask: (B, T), 1 for valid steps and 0 for padding; everything is valid if left out
    """

    def __init__(self, dim=64, num_heads=4, depth=3, dropout=0.0):
        super().__init__()
        self.layers = nn.ModuleList([EncoderLayer(dim, num_heads, dropout) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, mask=None):
        if mask is None:
            mask = x.new_ones(x.shape[:2])
        mask = mask.to(x.dtype)
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)
