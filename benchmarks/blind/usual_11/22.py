import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def build_rope_cache(seq_len, head_dim, base=10000, device=None):
    """cos and sin tables of shape (seq_len, head_dim)"""
    theta = 1.0 / (base ** (torch.arange(0, head_dim, 2, device=device).float() / head_dim))
    seq_idx = torch.arange(seq_len, device=device).float()
    idx_theta = torch.outer(seq_idx, theta).repeat_interleave(2, dim=-1)
    return torch.cos(idx_theta), torch.sin(idx_theta)


def rotate_half(x):
    half = x.size(-1) // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def apply_rope(x, cos, sin):
    return (x * cos) + (rotate_half(x) * sin)


class RotarySelfAttention(nn.Module):
    """Causal self-attention with rotary position embeddings (Su et al., 2021)."""

    def __init__(self, n_embd=64, n_head=4, block_size=256, rope_base=10000, dropout=0.0):
        super().__init__()
        self.n_head = n_head
        self.head_size = n_embd // n_head
        self.dropout = dropout
        self.attn = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.proj = nn.Linear(n_embd, n_embd, bias=False)
        cos, sin = build_rope_cache(block_size, self.head_size, rope_base)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x):
        B, T, C = x.size()
        qkv = self.attn(x).view(B, T, 3, self.n_head, self.head_size).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]

        cos, sin = self.cos[:T].to(q.dtype), self.sin[:T].to(q.dtype)
        q = apply_rope(q, cos, sin)
        k = apply_rope(k, cos, sin)

        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            dropout_p=self.dropout if self.training else 0.0,
            scale=1.0 / math.sqrt(self.head_size),
            is_causal=True,
        )
        return self.proj(y.transpose(1, 2).reshape(B, T, C))
