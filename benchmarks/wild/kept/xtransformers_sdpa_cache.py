"""is_causal=True with a cache aligns the mask to the top-left corner, so a decoded token sees only the oldest key.

lucidrains/x-transformers #187 (2023)
https://github.com/lucidrains/x-transformers/issues/187
"""
import torch
import torch.nn.functional as F
from torch import nn


def exists(val):
    return val is not None


class _AttendBase(nn.Module):
    def __init__(self, *, dropout=0., causal=False):
        super().__init__()
        self.dropout = dropout
        self.causal = causal


class _CausalAttention(nn.Module):
    """Self attention of a decoder with an optional key / value cache."""

    def __init__(self, dim, attend, dim_head=8, heads=4):
        super().__init__()
        inner = dim_head * heads
        self.heads = heads
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_k = nn.Linear(dim, inner, bias=False)
        self.to_v = nn.Linear(dim, inner, bias=False)
        self.to_out = nn.Linear(inner, dim, bias=False)
        self.attend = attend

    def forward(self, x, cache=None, return_cache=False):
        """
        x: (batch, new tokens, dim); cache: (k, v) of all earlier tokens as returned by return_cache=True
        """
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        if exists(cache):
            ck, cv = cache
            k, v = torch.cat((ck, k), dim=-2), torch.cat((cv, v), dim=-2)
        out = self.to_out(self.attend(q, k, v).transpose(1, 2).flatten(2))
        return (out, (k, v)) if return_cache else out


def broken() -> nn.Module:
    class Attend(_AttendBase):
        def forward(self, q, k, v):
            causal = self.causal
            return F.scaled_dot_product_attention(
                q, k, v, dropout_p=self.dropout if self.training else 0., is_causal=causal)

    torch.manual_seed(0)
    return _CausalAttention(32, Attend(causal=True))


def fixed() -> nn.Module:
    class Attend(_AttendBase):
        def forward(self, q, k, v):
            i, j = q.shape[-2], k.shape[-2]
            mask = None
            if self.causal and i > 1:
                mask = torch.ones(i, j, dtype=torch.bool, device=q.device).tril(j - i)
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, dropout_p=self.dropout if self.training else 0.)

    torch.manual_seed(0)
    return _CausalAttention(32, Attend(causal=True))


def example():
    g = torch.Generator().manual_seed(12)
    x = torch.randn(1, 1, 32, generator=g)
    k, v = torch.randn(1, 4, 7, 8, generator=g), torch.randn(1, 4, 7, 8, generator=g)
    return (x,), {"cache": (k, v), "return_cache": True}
