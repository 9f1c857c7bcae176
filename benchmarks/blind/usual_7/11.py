import math

import torch
import torch.nn as nn


class CrossAttention(nn.Module):
    def __init__(self, dim, memory_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.to_q = nn.Linear(dim, dim)
        self.to_kv = nn.Linear(memory_dim, 2 * dim)
        self.proj = nn.Linear(dim, dim)
        self._kv = None

    def _heads(self, t):
        return t.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def forward(self, x, memory):
        q = self._heads(self.to_q(x))
        if self.training or self._kv is None:
            k, v = map(self._heads, self.to_kv(memory).chunk(2, dim=-1))
            if not self.training:
                # the image features do not change while a caption is decoded
                self._kv = (k, v)
        else:
            k, v = self._kv
        w = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(self.head_dim), dim=-1)
        return self.proj((w @ v).transpose(1, 2).flatten(2))


class CaptionDecoderLayer(nn.Module):
    """
    One layer of the caption decoder.

    x:      (B, T, dim) embedded caption prefix
    memory: (B, S, memory_dim) grid features of the image
    """

    def __init__(self, dim=64, num_heads=4, memory_dim=64, ff_mult=4):
        super().__init__()
        self.num_heads = num_heads
        self.ln_self = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.self_proj = nn.Linear(dim, dim)
        self.ln_cross = nn.LayerNorm(dim)
        self.cross = CrossAttention(dim, memory_dim, num_heads)
        self.ln_ff = nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, ff_mult * dim), nn.GELU(), nn.Linear(ff_mult * dim, dim))

    def _self_attention(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        s = q @ k.transpose(-1, -2) / math.sqrt(C // self.num_heads)
        s = s.masked_fill(torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1), float("-inf"))
        return self.self_proj((s.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C))

    def forward(self, x, memory):
        x = x + self._self_attention(self.ln_self(x))
        x = x + self.cross(self.ln_cross(x), memory)
        return x + self.ff(self.ln_ff(x))
