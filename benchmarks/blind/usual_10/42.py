import torch
from einops import rearrange, repeat
from torch import nn


class CrossModalAttention(nn.Module):
    """Heads are folded into the batch, so that everything is a plain batched matmul.

    x:       (batch, n, dim)       queries
    context: (batch, m, ctx_dim)   keys and values
    mask:    (batch, m) bool       True for the context tokens to use
    """

    def __init__(self, dim=64, ctx_dim=None, heads=4, dim_head=16, dropout=0.0):
        super().__init__()
        inner_dim = dim_head * heads
        ctx_dim = ctx_dim or dim
        self.scale = dim_head ** -0.5
        self.heads = heads
        self.to_q = nn.Linear(dim, inner_dim, bias=False)
        self.to_k = nn.Linear(ctx_dim, inner_dim, bias=False)
        self.to_v = nn.Linear(ctx_dim, inner_dim, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner_dim, dim), nn.Dropout(dropout))

    def forward(self, x, context=None, mask=None):
        h = self.heads
        context = x if context is None else context
        q, k, v = self.to_q(x), self.to_k(context), self.to_v(context)
        q, k, v = (rearrange(t, "b n (h d) -> (b h) n d", h=h) for t in (q, k, v))

        sim = torch.einsum("b i d, b j d -> b i j", q, k) * self.scale
        if mask is not None:
            mask = repeat(mask, "b j -> (h b) () j", h=h)
            sim = sim.masked_fill(~mask, -torch.finfo(sim.dtype).max)

        attn = sim.softmax(dim=-1)
        out = torch.einsum("b i j, b j d -> b i d", attn, v)
        out = rearrange(out, "(b h) n d -> b n (h d)", h=h)
        return self.to_out(out)
