import torch
from einops import rearrange
from torch import nn


class TalkingHeadsAttention(nn.Module):
    """Talking-heads attention (Shazeer et al. 2020): the heads are mixed linearly
    before and after the softmax."""

    def __init__(self, dim=64, heads=4, dim_head=16, dropout=0.0):
        super().__init__()
        inner_dim = dim_head * heads
        self.heads = heads
        self.scale = dim_head ** -0.5
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(dim, inner_dim * 2, bias=False)
        self.mix_heads_pre_attn = nn.Parameter(torch.eye(heads) + 0.02 * torch.randn(heads, heads))
        self.mix_heads_post_attn = nn.Parameter(torch.eye(heads) + 0.02 * torch.randn(heads, heads))
        self.attn_drop = nn.Dropout(dropout)
        self.to_out = nn.Sequential(nn.Linear(inner_dim, dim), nn.Dropout(dropout))

    def forward(self, x, context=None, context_mask=None):
        """context_mask: bool (b, j), True = attend."""
        x = self.norm(x)
        context = x if context is None else context
        q = self.to_q(x)
        k, v = self.to_kv(context).chunk(2, dim=-1)
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in (q, k, v))

        dots = torch.einsum("b h i d, b h j d -> b h i j", q, k) * self.scale
        dots = torch.einsum("b h i j, h g -> b g i j", dots, self.mix_heads_pre_attn)
        if context_mask is not None:
            dots = dots.masked_fill(~rearrange(context_mask, "b j -> b 1 1 j"), -torch.finfo(dots.dtype).max)

        attn = self.attn_drop(dots.softmax(dim=-1))
        attn = torch.einsum("b h i j, h g -> b g i j", attn, self.mix_heads_post_attn)

        out = torch.einsum("b h i j, b h j d -> b h i d", attn, v)
        return self.to_out(rearrange(out, "b h n d -> b n (h d)"))
