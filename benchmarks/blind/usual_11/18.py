import torch
from torch import einsum, nn


class SharedKVAttention(nn.Module):
    """
    Multi-query attention in which keys and values are one and the same vector.

    There is a single key/value head of width ``dim_head`` for all query heads, made by one
    projection ``to_kv``; the tensor serves both as key and as value, which halves the cache again
    compared with plain multi-query attention.

    x: (batch, n, dim); context (optional): (batch, m, dim);
    context_mask: bool (batch, m), True for positions that may be attended to.
    """

    def __init__(self, dim=64, heads=4, dim_head=16, causal=False):
        super().__init__()
        self.heads = heads
        self.scale = dim_head ** -0.5
        self.causal = causal
        self.to_q = nn.Linear(dim, heads * dim_head, bias=False)
        self.to_kv = nn.Linear(dim, dim_head, bias=False)
        self.norm_kv = nn.LayerNorm(dim_head)
        self.to_out = nn.Linear(heads * dim_head, dim, bias=False)

    def forward(self, x, context=None, context_mask=None):
        b, n, _ = x.shape
        source = x if context is None else context
        q = self.to_q(x).view(b, n, self.heads, -1).transpose(1, 2) * self.scale
        kv = self.norm_kv(self.to_kv(source))

        sim = einsum("b h i d, b j d -> b h i j", q, kv)
        if context_mask is not None:
            sim = sim.masked_fill(~context_mask[:, None, None, :], -torch.finfo(sim.dtype).max)
        if self.causal and context is None:
            future = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
            sim = sim.masked_fill(future, -torch.finfo(sim.dtype).max)

        attn = sim.softmax(dim=-1)
        out = einsum("b h i j, b j d -> b h i d", attn, kv)
        return self.to_out(out.transpose(1, 2).reshape(b, n, -1))
