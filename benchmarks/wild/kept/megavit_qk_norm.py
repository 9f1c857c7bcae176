"""The q and k norms are applied to keys and values, the queries are left unnormalised.

kyegomez/MegaVIT #17 (2024)
https://github.com/kyegomez/MegaVIT/issues/17
"""
import torch
from torch import nn


class _AttentionBase(nn.Module):
    """Attention with normalised queries and keys (ViT-22B, https://arxiv.org/abs/2302.05442)."""

    def __init__(self, dim, heads=4, dim_head=8, dropout=0.):
        super().__init__()
        inner_dim = dim_head * heads
        self.heads = heads
        self.scale = dim_head ** -0.5

        self.norm = nn.LayerNorm(dim)
        self.attend = nn.Softmax(dim=-1)
        self.dropout = nn.Dropout(dropout)
        self.to_qkv = nn.Linear(dim, inner_dim * 3, bias=False)
        self.q_norm = nn.LayerNorm(inner_dim)
        self.k_norm = nn.LayerNorm(inner_dim)
        self.to_out = nn.Sequential(nn.Linear(inner_dim, dim), nn.Dropout(dropout))

    def split(self, t):
        b, n, _ = t.shape
        return t.view(b, n, self.heads, -1).transpose(1, 2)

    def attention(self, q, k, v):
        q, k, v = map(self.split, (q, k, v))
        dots = torch.matmul(q, k.transpose(-1, -2)) * self.scale
        attn = self.dropout(self.attend(dots))
        out = torch.matmul(attn, v).transpose(1, 2).flatten(2)
        return self.to_out(out)


def broken() -> nn.Module:
    class Attention(_AttentionBase):
        def forward(self, x):
            x = self.norm(x)
            q, k, v = self.to_qkv(x).chunk(3, dim=-1)
            # qk norm
            k, v = self.q_norm(k), self.k_norm(v)
            return self.attention(q, k, v)

    torch.manual_seed(0)
    return Attention(32)


def fixed() -> nn.Module:
    class Attention(_AttentionBase):
        def forward(self, x):
            x = self.norm(x)
            q, k, v = self.to_qkv(x).chunk(3, dim=-1)
            # qk norm
            q, k = self.q_norm(q), self.k_norm(k)
            return self.attention(q, k, v)

    torch.manual_seed(0)
    return Attention(32)


def example():
    g = torch.Generator().manual_seed(39)
    return (torch.randn(2, 10, 32, generator=g),), {}
