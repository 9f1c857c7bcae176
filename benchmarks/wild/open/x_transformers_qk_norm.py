"""The learned per-head scales of the QK norm are created but never used, so they never receive a gradient.

lucidrains/x-transformers #352 (2026)
https://github.com/lucidrains/x-transformers/issues/352
"""
import torch
from torch import nn, einsum
import torch.nn.functional as F


def l2norm(t):
    return F.normalize(t, dim=-1)


class _AttentionBase(nn.Module):
    def __init__(self, dim, dim_head=8, heads=4, causal=True, qk_norm=True, qk_norm_scale=10., qk_norm_dim_scale=True):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.to_q = nn.Linear(dim, dim_head * heads, bias=False)
        self.to_k = nn.Linear(dim, dim_head * heads, bias=False)
        self.to_v = nn.Linear(dim, dim_head * heads, bias=False)
        self.to_out = nn.Linear(dim_head * heads, dim, bias=False)

        # qk normalization
        self.qk_norm = qk_norm
        self.qk_norm_scale = qk_norm_scale

        # whether to use the rmsnorm (equivalent to cosine sim attention with learned temperature) - in the style of ViT-22B
        self.qk_norm_dim_scale = qk_norm_dim_scale
        self.qk_norm_q_scale = self.qk_norm_k_scale = 1
        if qk_norm and qk_norm_dim_scale:
            self.qk_norm_q_scale = nn.Parameter(torch.ones(heads, 1, dim_head))
            self.qk_norm_k_scale = nn.Parameter(torch.ones(heads, 1, dim_head))


def broken() -> nn.Module:
    class Attention(_AttentionBase):
        def forward(self, x, mask=None):
            """
            x: (b, n, d)
            mask: (b, n) bool, True for tokens to attend to
            """
            q, k, v = self.to_q(x), self.to_k(x), self.to_v(x)
            q, k, v = map(lambda t: t.unflatten(-1, (self.heads, -1)).transpose(1, 2), (q, k, v))

            scale = q.shape[-1] ** -0.5
            if self.qk_norm:
                q, k = map(l2norm, (q, k))
                scale = self.qk_norm_scale

            sim = einsum('b h i d, b h j d -> b h i j', q, k) * scale
            mask_value = -torch.finfo(sim.dtype).max
            if mask is not None:
                sim = sim.masked_fill(~mask[:, None, None, :], mask_value)
            if self.causal:
                i, j = sim.shape[-2:]
                causal_mask = torch.ones((i, j), dtype=torch.bool, device=x.device).triu(j - i + 1)
                sim = sim.masked_fill(causal_mask, mask_value)

            attn = sim.softmax(dim=-1)
            out = einsum('b h i j, b h j d -> b h i d', attn, v)
            return self.to_out(out.transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    return Attention(32)


def fixed() -> nn.Module:
    class Attention(_AttentionBase):
        def forward(self, x, mask=None):
            """
            x: (b, n, d)
            mask: (b, n) bool, True for tokens to attend to
            """
            q, k, v = self.to_q(x), self.to_k(x), self.to_v(x)
            q, k, v = map(lambda t: t.unflatten(-1, (self.heads, -1)).transpose(1, 2), (q, k, v))

            scale = q.shape[-1] ** -0.5
            if self.qk_norm:
                q, k = map(l2norm, (q, k))
                scale = self.qk_norm_scale
                q = q * self.qk_norm_q_scale
                k = k * self.qk_norm_k_scale

            sim = einsum('b h i d, b h j d -> b h i j', q, k) * scale
            mask_value = -torch.finfo(sim.dtype).max
            if mask is not None:
                sim = sim.masked_fill(~mask[:, None, None, :], mask_value)
            if self.causal:
                i, j = sim.shape[-2:]
                causal_mask = torch.ones((i, j), dtype=torch.bool, device=x.device).triu(j - i + 1)
                sim = sim.masked_fill(causal_mask, mask_value)

            attn = sim.softmax(dim=-1)
            out = einsum('b h i j, b h j d -> b h i d', attn, v)
            return self.to_out(out.transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    return Attention(32)
