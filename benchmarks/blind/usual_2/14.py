import math

import torch
from torch import nn


def mha(x, ctx, wq, wk, wv, wo, keep=None):
    """Functional multi-head attention, weights given per head.

    x:   (b, n, c)      queries come from here
    ctx: (b, m, c)      keys and values come from here
    wq, wk, wv: (h, c, d);  wo: (h, d, c)
    keep: bool, broadcastable to (b, h, n, m), False entries get no weight
    """
    q = torch.einsum("bnc,hcd->bhnd", x, wq)
    k = torch.einsum("bmc,hcd->bhmd", ctx, wk)
    v = torch.einsum("bmc,hcd->bhmd", ctx, wv)

    z = torch.einsum("bhnd,bhmd->bhnm", q, k) / math.sqrt(wq.shape[-1])
    if keep is not None:
        z = z.masked_fill(~keep, torch.finfo(z.dtype).min)
    e = torch.exp(z - z.max(dim=-1, keepdim=True).values)
    p = e / e.sum(dim=-1, keepdim=True)

    # every head writes into the output on its own, the sum runs over heads and channels
    return torch.einsum("bhnm,bhmd,hdc->bnc", p, v, wo)


class FunctionalAttention(nn.Module):
    def __init__(self, dim=64, num_heads=4, causal=True):
        super().__init__()
        assert dim % num_heads == 0
        head_dim = dim // num_heads
        self.causal = causal
        self.wq = nn.Parameter(torch.randn(num_heads, dim, head_dim) * dim ** -0.5)
        self.wk = nn.Parameter(torch.randn(num_heads, dim, head_dim) * dim ** -0.5)
        self.wv = nn.Parameter(torch.randn(num_heads, dim, head_dim) * dim ** -0.5)
        self.wo = nn.Parameter(torch.randn(num_heads, head_dim, dim) * dim ** -0.5)

    def forward(self, x):
        n = x.shape[1]
        keep = None
        if self.causal:
            pos = torch.arange(n, device=x.device)
            keep = pos[:, None] >= pos[None, :]
        return mha(x, x, self.wq, self.wk, self.wv, self.wo, keep)
