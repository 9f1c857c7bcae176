"""The rotary table repeats each frequency for neighbouring dimensions while rotate_half pairs dimensions half a head apart.

raiyanyahya/how-to-train-your-gpt #6 (2026)
https://github.com/raiyanyahya/how-to-train-your-gpt/issues/6
"""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F


def _build(rev):
    class RotaryEmbedding(nn.Module):
        def __init__(self, dim, max_seq_len=256, base=10000):
            super().__init__()
            inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
            freqs = torch.outer(torch.arange(max_seq_len).float(), inv_freq)
            emb = freqs.repeat_interleave(2, dim=-1)
            self.register_buffer("cos", emb.cos(), persistent=False)
            self.register_buffer("sin", emb.sin(), persistent=False)

        @staticmethod
        def rotate_half(x):
            if rev == 1:
                x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2:]
                return torch.cat([-x2, x1], dim=-1)
            return torch.stack([-x[..., 1::2], x[..., 0::2]], dim=-1).flatten(-2)

        def forward(self, x):
            T = x.shape[-2]
            return x * self.cos[:T] + self.rotate_half(x) * self.sin[:T]

    class CausalAttention(nn.Module):
        """Causal self-attention with rotary positions; forward(x), x (B, T, d_model)."""

        def __init__(self, d_model=64, num_heads=4):
            super().__init__()
            self.num_heads, self.head_dim = num_heads, d_model // num_heads
            self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
            self.out = nn.Linear(d_model, d_model, bias=False)
            self.rope = RotaryEmbedding(self.head_dim)

        def forward(self, x):
            B, T, C = x.shape
            q, k, v = self.qkv(x).view(B, T, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
            q, k = self.rope(q), self.rope(k)
            scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
            mask = torch.triu(torch.ones(T, T, dtype=torch.bool, device=x.device), diagonal=1)
            weights = F.softmax(scores.masked_fill(mask, float("-inf")), dim=-1)
            return self.out((weights @ v).transpose(1, 2).reshape(B, T, C))

    torch.manual_seed(0)
    return CausalAttention()


def broken():
    return _build(1)


def fixed():
    return _build(2)
