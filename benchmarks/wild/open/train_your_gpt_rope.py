"""The angles are laid out for adjacent pairs while rotate_half pairs the two halves, so phases do not match pairs.

raiyanyahya/how-to-train-your-gpt #6 (2026)
https://github.com/raiyanyahya/how-to-train-your-gpt/issues/6
"""
import math

import torch
import torch.nn as nn


class RotaryEmbedding(nn.Module):
    def __init__(self, dim, max_seq_len=64, base=10000):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        t = torch.arange(max_seq_len).float()
        freqs = torch.outer(t, inv_freq)  # (max_seq_len, dim / 2)
        emb = freqs.repeat_interleave(2, dim=-1)  # [θ0, θ0, θ1, θ1, ...]
        self.register_buffer("cos", emb.cos(), persistent=False)
        self.register_buffer("sin", emb.sin(), persistent=False)

    def forward(self, seq_len):
        return self.cos[:seq_len], self.sin[:seq_len]


class _MultiHeadAttentionBase(nn.Module):
    """Causal multi-head attention with rotary positions."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads, self.d_head = n_heads, d_model // n_heads
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, d_model, bias=False)
        self.v_proj = nn.Linear(d_model, d_model, bias=False)
        self.out_proj = nn.Linear(d_model, d_model, bias=False)
        self.rope = RotaryEmbedding(self.d_head)

    def apply_rope(self, x, cos, sin):
        return x * cos + self.rotate_half(x) * sin

    def forward(self, x):
        B, T, C = x.shape
        q = self.q_proj(x).view(B, T, self.n_heads, self.d_head).transpose(1, 2)
        k = self.k_proj(x).view(B, T, self.n_heads, self.d_head).transpose(1, 2)
        v = self.v_proj(x).view(B, T, self.n_heads, self.d_head).transpose(1, 2)
        cos, sin = self.rope(T)
        q, k = self.apply_rope(q, cos, sin), self.apply_rope(k, cos, sin)

        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_head)
        mask = torch.triu(torch.ones(T, T, device=x.device, dtype=torch.bool), diagonal=1)
        scores = scores.masked_fill(mask, float("-inf"))
        out = torch.softmax(scores, dim=-1) @ v
        return self.out_proj(out.transpose(1, 2).contiguous().view(B, T, C))


def broken() -> nn.Module:
    class MultiHeadAttention(_MultiHeadAttentionBase):
        @staticmethod
        def rotate_half(x):
            x1 = x[..., : x.shape[-1] // 2]
            x2 = x[..., x.shape[-1] // 2 :]
            return torch.cat([-x2, x1], dim=-1)

    torch.manual_seed(0)
    return MultiHeadAttention(32, 4)


def fixed() -> nn.Module:
    class MultiHeadAttention(_MultiHeadAttentionBase):
        @staticmethod
        def rotate_half(x):
            x1 = x[..., 0::2]
            x2 = x[..., 1::2]
            return torch.stack([-x2, x1], dim=-1).flatten(-2)

    torch.manual_seed(0)
    return MultiHeadAttention(32, 4)
