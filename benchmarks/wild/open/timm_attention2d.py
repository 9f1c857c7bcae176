"""The scale is computed from the number of heads instead of the width of a head.

huggingface/pytorch-image-models #2385 (2024)
https://github.com/huggingface/pytorch-image-models/issues/2385
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def _build(rev):
    class Attention2d(nn.Module):
        """Multi-head attention over an NCHW feature map (heads in channels); forward(x), x (B, C, H, W)."""

        def __init__(self, dim, dim_out=None, num_heads=32, bias=True, expand_first=False, attn_drop=0., proj_drop=0.):
            super().__init__()
            dim_out = dim_out or dim
            dim_attn = dim_out if expand_first else dim
            self.num_heads = num_heads
            self.dim_head = dim_attn // num_heads
            self.scale = num_heads ** -0.5 if rev == 1 else self.dim_head ** -0.5
            self.qkv = nn.Conv2d(dim, dim_attn * 3, 1, bias=bias)
            self.attn_drop = nn.Dropout(attn_drop)
            self.proj = nn.Conv2d(dim_attn, dim_out, 1, bias=bias)
            self.proj_drop = nn.Dropout(proj_drop)

        def forward(self, x, attn_mask=None):
            B, C, H, W = x.shape
            q, k, v = self.qkv(x).view(B, self.num_heads, self.dim_head * 3, -1).chunk(3, dim=2)
            q = q * self.scale
            attn = q.transpose(-2, -1) @ k
            if attn_mask is not None:
                attn = attn + attn_mask
            attn = attn.softmax(dim=-1)
            attn = self.attn_drop(attn)
            x = (v @ attn.transpose(-2, -1)).reshape(B, -1, H, W)
            return self.proj_drop(self.proj(x))

    torch.manual_seed(0)
    return Attention2d(64, num_heads=4)


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    return (torch.randn(2, 64, 5, 6),), {}
