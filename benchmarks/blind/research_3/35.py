import torch
import torch.nn.functional as F
from torch import nn, einsum


class LayerNorm(nn.Module):
    """gamma only, beta stays zero"""

    def __init__(self, dim):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(dim))
        self.register_buffer("beta", torch.zeros(dim))

    def forward(self, x):
        return F.layer_norm(x, x.shape[-1:], self.gamma, self.beta)


class SwiGLU(nn.Module):
    def forward(self, x):
        x, gate = x.chunk(2, dim=-1)
        return F.silu(gate) * x


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


class ParallelTransformerBlock(nn.Module):
    """attention and feedforward in parallel, one fused input projection.

    Multi-query: a single key head, shared by all query heads. Keys and values are
    tied as well: the values are the keys before the rotation.
    Returns the block's update; ``Residual`` outside adds x.
    """

    def __init__(self, dim=64, dim_head=16, heads=4, ff_mult=4):
        super().__init__()
        self.norm = LayerNorm(dim)
        attn_inner = dim_head * heads
        ff_inner = dim * ff_mult
        self.fused_dims = (attn_inner, dim_head, ff_inner * 2)

        self.heads = heads
        self.dim_head = dim_head
        self.scale = dim_head ** -0.5

        inv_freq = 1.0 / (10000 ** (torch.arange(0, dim_head, 2).float() / dim_head))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

        self.fused_attn_ff_proj = nn.Linear(dim, sum(self.fused_dims), bias=False)
        self.attn_out = nn.Linear(attn_inner, dim, bias=False)
        self.ff_out = nn.Sequential(SwiGLU(), nn.Linear(ff_inner, dim, bias=False))

    def rotary(self, t):
        n = t.shape[-2]
        freqs = torch.outer(torch.arange(n, device=t.device).float(), self.inv_freq)
        pos = torch.cat((freqs, freqs), dim=-1)
        return t * pos.cos() + rotate_half(t) * pos.sin()

    def forward(self, x):
        b, n, _ = x.shape
        x = self.norm(x)
        q, kv, ff = self.fused_attn_ff_proj(x).split(self.fused_dims, dim=-1)

        q = q.view(b, n, self.heads, self.dim_head).transpose(1, 2)
        v = kv
        q, k = self.rotary(q), self.rotary(kv)

        sim = einsum("b h i d, b j d -> b h i j", q * self.scale, k)
        causal_mask = torch.ones((n, n), device=x.device, dtype=torch.bool).triu(1)
        sim = sim.masked_fill(causal_mask, -torch.finfo(sim.dtype).max)

        attn = sim.softmax(dim=-1)
        out = einsum("b h i j, b j d -> b h i d", attn, v)
        out = out.transpose(1, 2).reshape(b, n, -1)

        return self.attn_out(out) + self.ff_out(ff)
