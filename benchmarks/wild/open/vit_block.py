"""The scores are scaled by the model width instead of the width of a head.

lucidrains/vit-pytorch #65 (2021)
https://github.com/lucidrains/vit-pytorch/issues/65
"""
import torch
import torch.nn as nn


def _build(rev):
    class Residual(nn.Module):
        def __init__(self, fn):
            super().__init__()
            self.fn = fn

        def forward(self, x, **kwargs):
            return self.fn(x, **kwargs) + x

    class PreNorm(nn.Module):
        def __init__(self, dim, fn):
            super().__init__()
            self.norm = nn.LayerNorm(dim)
            self.fn = fn

        def forward(self, x, **kwargs):
            return self.fn(self.norm(x), **kwargs)

    class FeedForward(nn.Module):
        def __init__(self, dim, hidden_dim, dropout=0.):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(dim, hidden_dim), nn.GELU(), nn.Dropout(dropout),
                                     nn.Linear(hidden_dim, dim), nn.Dropout(dropout))

        def forward(self, x):
            return self.net(x)

    class Attention(nn.Module):
        def __init__(self, dim, heads=8, dim_head=64, dropout=0.):
            super().__init__()
            inner_dim = dim_head * heads
            self.heads = heads
            self.scale = dim ** -0.5 if rev == 1 else dim_head ** -0.5
            self.to_qkv = nn.Linear(dim, inner_dim * 3, bias=False)
            self.to_out = nn.Sequential(nn.Linear(inner_dim, dim), nn.Dropout(dropout))

        def forward(self, x):
            b, n, _ = x.shape
            h = self.heads
            q, k, v = (t.view(b, n, h, -1).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1))
            dots = torch.einsum('bhid,bhjd->bhij', q, k) * self.scale
            attn = dots.softmax(dim=-1)
            out = torch.einsum('bhij,bhjd->bhid', attn, v)
            return self.to_out(out.transpose(1, 2).reshape(b, n, -1))

    class Transformer(nn.Module):
        """A ViT encoder: forward(x) with x (B, N, dim) patch embeddings, no mask."""

        def __init__(self, dim, depth, heads, dim_head, mlp_dim):
            super().__init__()
            self.layers = nn.ModuleList([nn.ModuleList([
                Residual(PreNorm(dim, Attention(dim, heads=heads, dim_head=dim_head))),
                Residual(PreNorm(dim, FeedForward(dim, mlp_dim)))]) for _ in range(depth)])

        def forward(self, x):
            for attn, ff in self.layers:
                x = ff(attn(x))
            return x

    torch.manual_seed(0)
    return Transformer(48, 2, 4, 12, 96)


def broken():
    return _build(1)


def fixed():
    return _build(2)
