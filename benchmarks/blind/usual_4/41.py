import torch
import torch.nn as nn


class EinsumSelfAttention(nn.Module):
    """Self-attention written with einsums only, weights kept as (dim, heads, head_dim)."""

    def __init__(self, dim: int = 64, num_heads: int = 4):
        super().__init__()
        hd = dim // num_heads
        self.scale = hd ** -0.5
        self.w_q = nn.Parameter(torch.randn(dim, num_heads, hd) * dim ** -0.5)
        self.w_k = nn.Parameter(torch.randn(dim, num_heads, hd) * dim ** -0.5)
        self.w_v = nn.Parameter(torch.randn(dim, num_heads, hd) * dim ** -0.5)
        self.w_o = nn.Parameter(torch.randn(num_heads, hd, dim) * dim ** -0.5)

    def forward(self, x, mask=None):
        # mask: (batch, length), True = token
        q = torch.einsum("bld,dhe->blhe", x, self.w_q)
        k = torch.einsum("bld,dhe->blhe", x, self.w_k)
        v = torch.einsum("bld,dhe->blhe", x, self.w_v)

        logits = torch.einsum("bqhe,bkhe->bhqk", q, k) * self.scale
        if mask is not None:
            logits = logits.masked_fill(~mask[:, None, None, :], torch.finfo(logits.dtype).min)
        weights = logits.softmax(dim=-1)

        ctx = torch.einsum("bhqk,bqhe->bqhe", weights, v)
        return torch.einsum("bqhe,hed->bqd", ctx, self.w_o)
