import torch
from torch import nn, einsum
import torch.nn.functional as F
from einops import rearrange, repeat


class MultiQueryNullAttention(nn.Module):
    """Multi-query attention with one learned null key/value.

    One key head and one value head serve all query heads. The null pair is always visible, so
    a row whose context is masked entirely falls back on it.
    """

    def __init__(self, dim=64, context_dim=None, heads=4, dim_head=16):
        super().__init__()
        context_dim = context_dim if context_dim is not None else dim
        self.heads = heads
        self.scale = dim_head ** -0.5
        self.norm = nn.LayerNorm(dim)
        self.null_kv = nn.Parameter(torch.randn(2, dim_head))
        self.to_q = nn.Linear(dim, heads * dim_head, bias=False)
        self.to_kv = nn.Linear(context_dim, dim_head * 2, bias=False)
        self.to_out = nn.Sequential(nn.Linear(heads * dim_head, dim, bias=False), nn.LayerNorm(dim))

    def forward(self, x, context=None, mask=None):
        """mask: (b, j) bool over the context, True = use."""
        b = x.shape[0]
        x = self.norm(x)
        context = x if context is None else context

        q = rearrange(self.to_q(x), "b n (h d) -> b h n d", h=self.heads) * self.scale
        k, v = self.to_kv(context).chunk(2, dim=-1)

        nk, nv = (repeat(t, "d -> b 1 d", b=b) for t in self.null_kv.unbind(0))
        k = torch.cat((nk, k), dim=-2)
        v = torch.cat((nv, v), dim=-2)

        sim = einsum("b h i d, b j d -> b h i j", q, k)
        if mask is not None:
            mask = F.pad(mask, (1, 0), value=True)
            sim = sim.masked_fill(~rearrange(mask, "b j -> b 1 1 j"), -torch.finfo(sim.dtype).max)

        # subtracting the maximum does not change the softmax
        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        attn = sim.softmax(dim=-1)
        out = einsum("b h i j, b j d -> b h i d", attn, v)
        return self.to_out(rearrange(out, "b h n d -> b n (h d)"))
