import torch
import torch.nn as nn
import torch.nn.functional as F


class DynamicNTKRotary(nn.Module):
    """Rotary embedding with dynamic NTK scaling.

    Up to ``max_position`` tokens the plain frequencies are used. For longer inputs the base is
    raised in proportion to the length, so that the slow frequencies do not run out of range.
    """

    def __init__(self, dim, max_position=64, base=10000.0, factor=2.0):
        super().__init__()
        self.dim = dim
        self.max_position = max_position
        self.base = base
        self.factor = factor
        self.register_buffer("inv_freq", self._frequencies(base), persistent=False)

    def _frequencies(self, base, device=None):
        return 1.0 / base ** (torch.arange(0, self.dim, 2, device=device).float() / self.dim)

    def forward(self, x):
        length = x.size(-2)
        if length > self.max_position:
            growth = self.factor * length / self.max_position - (self.factor - 1)
            base = self.base * growth ** (self.dim / (self.dim - 2))
            self.inv_freq = self._frequencies(base, x.device)
        t = torch.arange(length, device=x.device, dtype=torch.float32)
        freqs = torch.outer(t, self.inv_freq)
        emb = torch.cat([freqs, freqs], dim=-1)
        return emb.cos().to(x.dtype), emb.sin().to(x.dtype)


def apply_rotary(x, cos, sin):
    half = x.size(-1) // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * cos + turned * sin


class NTKSelfAttention(nn.Module):
    """Causal self-attention that extrapolates beyond its training length."""

    def __init__(self, dim=64, num_heads=4, max_position=64, rope_base=10000.0, rope_factor=2.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)
        self.rotary = DynamicNTKRotary(self.head_dim, max_position, rope_base, rope_factor)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (
            proj(x).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        cos, sin = self.rotary(v)
        q, k = apply_rotary(q, cos, sin), apply_rotary(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, d))
