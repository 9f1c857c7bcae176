"""Encoder attention with einsum and einops, a reader's favourite."""
import torch
from torch import nn
from einops import rearrange


class EinsumAttention(nn.Module):
    def __init__(self, dim=64, heads=4, dim_head=16, dropout=0.0):
        super().__init__()
        inner_dim = heads * dim_head
        self.heads = heads
        self.scale = dim_head ** -0.5
        self.norm = nn.LayerNorm(dim)
        self.to_qkv = nn.Linear(dim, inner_dim * 3, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.to_out = nn.Sequential(nn.Linear(inner_dim, dim), nn.Dropout(dropout))

    def forward(self, x, mask=None):
        """mask: (b, n) bool, True for tokens to keep"""
        x = self.norm(x)
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in self.to_qkv(x).chunk(3, dim=-1))

        dots = torch.einsum("bhid,bhjd->bhij", q, k) * self.scale
        if mask is not None:
            dots = dots.masked_fill(~rearrange(mask, "b j -> b 1 1 j"), -torch.finfo(dots.dtype).max)
        attn = self.dropout(dots.softmax(dim=-1))

        out = torch.einsum("bhij,bhid->bhid", attn, v)
        out = rearrange(out, "b h n d -> b n (h d)")
        return self.to_out(out)
