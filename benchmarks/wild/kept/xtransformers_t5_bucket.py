"""The causal flag of the T5 relative position buckets is tested the wrong way round.

lucidrains/x-transformers #10 (2021)
https://github.com/lucidrains/x-transformers/pull/10
"""
import math

import torch
from torch import nn, einsum


def log_bucket(n, num_buckets, max_distance):
    max_exact = num_buckets // 2
    is_small = n < max_exact
    val_if_large = max_exact + (
        torch.log(n.clamp(min=1).float() / max_exact) / math.log(max_distance / max_exact) * (num_buckets - max_exact)
    ).long()
    val_if_large = torch.min(val_if_large, torch.full_like(val_if_large, num_buckets - 1))
    return torch.where(is_small, n, val_if_large)


class _RelativePositionBiasBase(nn.Module):
    """T5 relative position bias; without causal, half of the buckets is for keys after the query."""

    def __init__(self, causal=False, num_buckets=32, max_distance=128, heads=8):
        super().__init__()
        self.causal = causal
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.relative_attention_bias = nn.Embedding(num_buckets, heads)

    def forward(self, qk_dots):
        i, j, device = *qk_dots.shape[-2:], qk_dots.device
        q_pos = torch.arange(i, dtype=torch.long, device=device)
        k_pos = torch.arange(j, dtype=torch.long, device=device)
        rel_pos = k_pos[None, :] - q_pos[:, None]
        rp_bucket = self._relative_position_bucket(
            rel_pos, causal=self.causal, num_buckets=self.num_buckets, max_distance=self.max_distance)
        values = self.relative_attention_bias(rp_bucket)
        return qk_dots + values.permute(2, 0, 1)[None]


class Attention(nn.Module):
    def __init__(self, dim, rel_pos, dim_head=8, heads=4):
        super().__init__()
        inner_dim = dim_head * heads
        self.heads, self.scale = heads, dim_head ** -0.5
        self.to_q = nn.Linear(dim, inner_dim, bias=False)
        self.to_k = nn.Linear(dim, inner_dim, bias=False)
        self.to_v = nn.Linear(dim, inner_dim, bias=False)
        self.rel_pos = rel_pos
        self.to_out = nn.Linear(inner_dim, dim)

    def forward(self, x, mask=None):
        """mask: boolean (batch, sequence), True for the tokens which are not padding"""
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        dots = einsum('b h i d, b h j d -> b h i j', q, k) * self.scale
        dots = self.rel_pos(dots)
        if mask is not None:
            dots = dots.masked_fill(~mask[:, None, None, :], -torch.finfo(dots.dtype).max)
        attn = dots.softmax(dim=-1)
        return self.to_out((attn @ v).transpose(1, 2).flatten(2))


def broken() -> nn.Module:
    class RelativePositionBias(_RelativePositionBiasBase):
        @staticmethod
        def _relative_position_bucket(relative_position, causal=True, num_buckets=32, max_distance=128):
            ret = 0
            n = -relative_position
            if causal:
                num_buckets //= 2
                ret += (n < 0).long() * num_buckets
                n = torch.abs(n)
            else:
                n = torch.max(n, torch.zeros_like(n))
            return ret + log_bucket(n, num_buckets, max_distance)

    torch.manual_seed(0)
    return Attention(32, RelativePositionBias(causal=False, num_buckets=16, max_distance=32, heads=4))


def fixed() -> nn.Module:
    class RelativePositionBias(_RelativePositionBiasBase):
        @staticmethod
        def _relative_position_bucket(relative_position, causal=True, num_buckets=32, max_distance=128):
            ret = 0
            n = -relative_position
            if not causal:
                num_buckets //= 2
                ret += (n < 0).long() * num_buckets
                n = torch.abs(n)
            else:
                n = torch.max(n, torch.zeros_like(n))
            return ret + log_bucket(n, num_buckets, max_distance)

    torch.manual_seed(0)
    return Attention(32, RelativePositionBias(causal=False, num_buckets=16, max_distance=32, heads=4))


def example():
    g = torch.Generator().manual_seed(27)
    x = torch.randn(2, 14, 32, generator=g)
    mask = torch.ones(2, 14, dtype=torch.bool)
    mask[1, 10:] = False
    return (x,), {"mask": mask}
