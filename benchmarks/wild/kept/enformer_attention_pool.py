"""The pooling window is hard-coded to 2 instead of pool_size.

lucidrains/enformer-pytorch #10 (2022)
https://github.com/lucidrains/enformer-pytorch/issues/10
"""
import torch
import torch.nn.functional as F
from torch import nn


class Rearrange(nn.Module):
    """'b d (n p) -> b d n p'"""

    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        return x.reshape(*x.shape[:2], -1, self.p)


class _AttentionPoolBase(nn.Module):
    """Softmax pooling of non-overlapping windows of `pool_size` positions, (b, d, n) -> (b, d, ceil(n / pool_size))."""

    def forward(self, x):
        b, _, n = x.shape
        remainder = -n % self.pool_size
        needs_padding = remainder > 0

        if needs_padding:
            x = F.pad(x, (0, remainder), value=0)
            mask = torch.zeros((b, 1, n), dtype=torch.bool, device=x.device)
            mask = F.pad(mask, (0, remainder), value=True)

        x = self.pool_fn(x)
        logits = self.to_attn_logits(x)

        if needs_padding:
            mask_value = -torch.finfo(logits.dtype).max
            logits = logits.masked_fill(self.pool_fn(mask), mask_value)

        attn = logits.softmax(dim=-1)
        return (x * attn).sum(dim=-1)


def init_logits(dim):
    to_attn_logits = nn.Conv2d(dim, dim, 1, bias=False)
    nn.init.dirac_(to_attn_logits.weight)
    with torch.no_grad():
        to_attn_logits.weight.mul_(2)
    return to_attn_logits


def broken() -> nn.Module:
    class AttentionPool(_AttentionPoolBase):
        def __init__(self, dim, pool_size=2):
            super().__init__()
            self.pool_size = pool_size
            self.pool_fn = Rearrange(p=2)
            self.to_attn_logits = init_logits(dim)

    torch.manual_seed(0)
    return AttentionPool(16, pool_size=4)


def fixed() -> nn.Module:
    class AttentionPool(_AttentionPoolBase):
        def __init__(self, dim, pool_size=2):
            super().__init__()
            self.pool_size = pool_size
            self.pool_fn = Rearrange(p=self.pool_size)
            self.to_attn_logits = init_logits(dim)

    torch.manual_seed(0)
    return AttentionPool(16, pool_size=4)


def example():
    g = torch.Generator().manual_seed(45)
    return (torch.randn(2, 16, 14, generator=g),), {}
