"""A (batch, keys) mask is laid along the queries ('b i -> b 1 i 1'), so padded rows are blanked and padded keys are seen.

lucidrains/x-transformers #172 (2023)
https://github.com/lucidrains/x-transformers/issues/172
"""
import torch
import torch.nn as nn


def _build(rev):
    class Attention(nn.Module):
        """forward(x, mask=None): x (b, n, dim), mask (b, n) bool: True = take part, False = padding."""

        def __init__(self, dim=32, dim_head=8, heads=4, dropout=0.):
            super().__init__()
            self.heads, self.scale = heads, dim_head ** -0.5
            self.to_q = nn.Linear(dim, dim_head * heads, bias=False)
            self.to_kv = nn.Linear(dim, dim_head * heads * 2, bias=False)
            self.attn_dropout = nn.Dropout(dropout)
            self.to_out = nn.Linear(dim_head * heads, dim, bias=False)

        def forward(self, x, mask=None):
            b, n, _ = x.shape
            q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in (self.to_q(x), *self.to_kv(x).chunk(2, -1)))
            dots = torch.einsum('bhid,bhjd->bhij', q, k) * self.scale
            if mask is not None:
                mask = mask[:, None, :, None] if rev == 1 else mask[:, None, None, :]
                dots = dots.masked_fill(~mask, -torch.finfo(dots.dtype).max)
            attn = self.attn_dropout(dots.softmax(dim=-1))
            out = torch.einsum('bhij,bhjd->bhid', attn, v)
            return self.to_out(out.transpose(1, 2).reshape(b, n, -1))

    torch.manual_seed(0)
    return Attention()


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    return (torch.randn(2, 8, 32),), {"mask": torch.arange(8)[None] < torch.tensor([8, 5])[:, None]}
