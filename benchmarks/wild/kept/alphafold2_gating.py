"""The output gate of the MSA attention is used without its sigmoid.

lucidrains/alphafold2 #84 (2021)
https://github.com/lucidrains/alphafold2/issues/84
"""
import torch
from torch import nn, einsum


def exists(val):
    return val is not None


def default(val, d):
    return val if exists(val) else d


class _AttentionBase(nn.Module):
    """Gated self attention of Evoformer: the attended values are multiplied by a sigmoid gate in (0, 1) computed from
    the input (Algorithm 7 of AlphaFold2). The gate starts (almost) open."""

    def __init__(self, dim, heads=4, dim_head=8, dropout=0., gating=True):
        super().__init__()
        inner_dim = dim_head * heads
        self.heads = heads
        self.scale = dim_head ** -0.5

        self.to_q = nn.Linear(dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(dim, inner_dim * 2, bias=False)
        self.to_out = nn.Linear(inner_dim, dim)

        self.gating = nn.Linear(dim, inner_dim)
        nn.init.normal_(self.gating.weight, std=dim ** -0.5)
        nn.init.constant_(self.gating.bias, 1.)

        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask=None, attn_bias=None):
        """
        x: (batch, residues, dim); mask: boolean (batch, residues), True for residues
        attn_bias: (batch, heads, residues, residues) from the pair representation
        """
        q, k, v = (self.to_q(x), *self.to_kv(x).chunk(2, dim=-1))
        q, k, v = map(lambda t: t.unflatten(-1, (self.heads, -1)).transpose(1, 2), (q, k, v))
        q = q * self.scale
        dots = einsum('b h i d, b h j d -> b h i j', q, k)
        if exists(attn_bias):
            dots = dots + attn_bias
        if exists(mask):
            dots = dots.masked_fill(~mask[:, None, None, :], -torch.finfo(dots.dtype).max)
        attn = self.dropout(dots.softmax(dim=-1))
        out = einsum('b h i j, b h j d -> b h i d', attn, v)
        out = out.transpose(1, 2).flatten(2)
        return self.to_out(self.gate(x, out))


def broken() -> nn.Module:
    class Attention(_AttentionBase):
        def gate(self, x, out):
            gates = self.gating(x)
            return out * gates

    torch.manual_seed(0)
    return Attention(32)


def fixed() -> nn.Module:
    class Attention(_AttentionBase):
        def gate(self, x, out):
            gates = self.gating(x)
            return out * gates.sigmoid()

    torch.manual_seed(0)
    return Attention(32)


def example():
    g = torch.Generator().manual_seed(46)
    x = torch.randn(2, 10, 32, generator=g)
    mask = torch.ones(2, 10, dtype=torch.bool)
    mask[1, 8:] = False
    return (x,), {"mask": mask, "attn_bias": torch.randn(2, 4, 10, 10, generator=g)}
