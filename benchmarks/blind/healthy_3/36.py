import torch
import torch.nn as nn
from einops import rearrange


class RelativeAxialAttention(nn.Module):
    """Attention along one axis with learned relative positions for queries, keys and values (Axial-DeepLab).

    Args:
        span: longest axis that can be handled.
    """

    def __init__(self, dim, heads, span):
        super().__init__()
        assert dim % heads == 0
        self.heads = heads
        self.dim_head = dim // heads
        self.span = span
        self.scale = self.dim_head ** -0.5
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        # row (span - 1 + d) belongs to the distance d = key - query
        self.rel_q = nn.Parameter(torch.randn(2 * span - 1, self.dim_head) * self.scale)
        self.rel_k = nn.Parameter(torch.randn(2 * span - 1, self.dim_head) * self.scale)
        self.rel_v = nn.Parameter(torch.randn(2 * span - 1, self.dim_head) * self.scale)

    def forward(self, x):
        """x: (n, length, dim)"""
        L = x.shape[1]
        if L > self.span:
            raise ValueError(f"axis of length {L}, at most {self.span} supported")
        q, k, v = rearrange(self.to_qkv(x), "n l (three h d) -> three n h l d", three=3, h=self.heads)

        index = torch.arange(L, device=x.device)
        rel = index[None, :] - index[:, None] + self.span - 1
        rq, rk, rv = self.rel_q[rel], self.rel_k[rel], self.rel_v[rel]  # (query, key, d)

        logits = torch.einsum("nhid,nhjd->nhij", q, k)
        logits = logits + torch.einsum("nhid,ijd->nhij", q, rq)
        logits = logits + torch.einsum("nhjd,ijd->nhij", k, rk)
        attn = (logits * self.scale).softmax(dim=-1)
        out = torch.einsum("nhij,nhjd->nhid", attn, v) + torch.einsum("nhij,ijd->nhid", attn, rv)
        return self.to_out(rearrange(out, "n h l d -> n l (h d)"))


class AxialBlock(nn.Module):
    """Residual block for feature maps: height attention, then width attention, then a 1x1 MLP.

    Input and output are (B, dim, H, W). Two axial passes connect every pixel with every other at cost
    O(HW (H + W)).
    """

    def __init__(self, dim=64, heads=4, max_size=32, mlp_ratio=2, dropout=0.0):
        super().__init__()
        self.norm_h = nn.LayerNorm(dim)
        self.attn_h = RelativeAxialAttention(dim, heads, max_size)
        self.norm_w = nn.LayerNorm(dim)
        self.attn_w = RelativeAxialAttention(dim, heads, max_size)
        self.norm_mlp = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, dim * mlp_ratio), nn.GELU(), nn.Linear(dim * mlp_ratio, dim))
        self.drop = nn.Dropout(dropout)

    def forward(self, fmap):
        b, _, h, w = fmap.shape
        x = rearrange(fmap, "b c h w -> b h w c")

        y = rearrange(self.norm_h(x), "b h w c -> (b w) h c")
        y = rearrange(self.attn_h(y), "(b w) h c -> b h w c", w=w)
        x = x + self.drop(y)

        y = rearrange(self.norm_w(x), "b h w c -> (b h) w c")
        y = rearrange(self.attn_w(y), "(b h) w c -> b h w c", h=h)
        x = x + self.drop(y)

        x = x + self.drop(self.mlp(self.norm_mlp(x)))
        return rearrange(x, "b h w c -> b c h w")
