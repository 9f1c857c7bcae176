import torch
from torch import nn, einsum
from einops import rearrange


def exists(val):
    return val is not None


class Attention(nn.Module):
    def __init__(self, dim=64, heads=8, dim_head=64, dropout=0.):
        super().__init__()
        inner_dim = dim_head * heads
        self.heads = heads
        self.scale = dim_head ** 0.5

        self.norm = nn.LayerNorm(dim)
        self.attend = nn.Softmax(dim=-1)
        self.dropout = nn.Dropout(dropout)
        self.to_qkv = nn.Linear(dim, inner_dim * 3, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner_dim, dim), nn.Dropout(dropout))

    def forward(self, x, mask=None):
        """mask: b n, True for tokens to keep"""
        x = self.norm(x)
        q, k, v = map(
            lambda t: rearrange(t, 'b n (h d) -> b h n d', h=self.heads),
            self.to_qkv(x).chunk(3, dim=-1),
        )
        dots = einsum('b h i d, b h j d -> b h i j', q, k) * self.scale

        if exists(mask):
            dots = dots.masked_fill(~rearrange(mask, 'b j -> b 1 1 j'), -torch.finfo(dots.dtype).max)

        attn = self.dropout(self.attend(dots))
        out = einsum('b h i j, b h j d -> b h i d', attn, v)
        return self.to_out(rearrange(out, 'b h n d -> b n (h d)'))
