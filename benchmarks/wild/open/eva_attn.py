"""The mask is applied to the weights after the softmax, so masked keys still take their share of the sum.

huggingface/pytorch-image-models #2236 (2024)
https://github.com/huggingface/pytorch-image-models/pull/2236
"""
import torch
import torch.nn as nn


def _build(rev):
    class EvaAttention(nn.Module):
        """forward(x, attn_mask=None): x (B, N, C); attn_mask (B, N) bool, True for valid tokens."""

        def __init__(self, dim=32, num_heads=4, qkv_bias=True, attn_drop=0., proj_drop=0.):
            super().__init__()
            self.num_heads = num_heads
            self.scale = (dim // num_heads) ** -0.5
            self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
            self.attn_drop = nn.Dropout(attn_drop)
            self.norm = nn.LayerNorm(dim)
            self.proj = nn.Linear(dim, dim)
            self.proj_drop = nn.Dropout(proj_drop)

        def forward(self, x, attn_mask=None):
            B, N, C = x.shape
            q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
            q = q * self.scale
            attn = q @ k.transpose(-2, -1)
            if rev == 1:
                attn = attn.softmax(dim=-1)
                if attn_mask is not None:
                    attn = attn.masked_fill(~attn_mask[:, None, None, :], 0.0)
            else:
                if attn_mask is not None:
                    attn = attn.masked_fill(~attn_mask[:, None, None, :], float("-inf"))
                attn = attn.softmax(dim=-1)
            x = self.attn_drop(attn) @ v
            x = self.norm(x.transpose(1, 2).reshape(B, N, C))
            return self.proj_drop(self.proj(x))

    torch.manual_seed(0)
    return EvaAttention()


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    return (torch.randn(2, 8, 32),), {"attn_mask": torch.arange(8)[None] < torch.tensor([8, 4])[:, None]}
