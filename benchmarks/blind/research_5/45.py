import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class PartialRotary(nn.Module):
    def __init__(self, rotary_dim, base=10000.0):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, rotary_dim, 2).float() / rotary_dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self.rotary_dim = rotary_dim

    def forward(self, length, device, dtype):
        t = torch.arange(length, device=device, dtype=torch.float32)
        angles = torch.outer(t, self.inv_freq).repeat_interleave(2, dim=-1)
        return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate_half(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


class ParallelBlock(nn.Module):
    """GPT-NeoX style block: attention and MLP read the same residual stream and are added together.

    Only the first ``rotary_pct`` of every head is rotated.
    """

    def __init__(self, dim=64, num_heads=4, rotary_pct=0.5, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.rotary_dim = int(self.head_dim * rotary_pct)
        self.rotary = PartialRotary(self.rotary_dim)
        self.input_layernorm = nn.LayerNorm(dim)
        self.post_attention_layernorm = nn.LayerNorm(dim)
        self.query_key_value = nn.Linear(dim, 3 * dim)
        self.dense = nn.Linear(dim, dim)
        self.dense_h_to_4h = nn.Linear(dim, 4 * dim)
        self.dense_4h_to_h = nn.Linear(4 * dim, dim)
        self.dropout = nn.Dropout(dropout)

    def _rotate(self, x, cos, sin):
        rot, rest = x[..., : self.rotary_dim], x[..., self.rotary_dim :]
        return torch.cat((rot * cos + rotate_half(rot) * sin, rest), dim=-1)

    def attention(self, x):
        b, t, d = x.shape
        qkv = self.query_key_value(x).view(b, t, self.num_heads, 3 * self.head_dim).transpose(1, 2)
        q, k, v = qkv.chunk(3, dim=-1)
        cos, sin = self.rotary(t, x.device, x.dtype)
        q, k = self._rotate(q, cos, sin), self._rotate(k, cos, sin)

        scores = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim)
        future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, torch.finfo(scores.dtype).min).softmax(dim=-1)
        return self.dense((weights @ v).transpose(1, 2).reshape(b, t, d))

    def mlp(self, x):
        return self.dense_4h_to_h(F.gelu(self.dense_h_to_4h(x)))

    def forward(self, x):
        attn = self.dropout(self.attention(self.input_layernorm(x)))
        mlp = self.dropout(self.mlp(self.post_attention_layernorm(x)))
        return x + attn + mlp
