from typing import Optional

import torch
import torch.nn as nn
from einops import rearrange


class MemoryEfficientAttention(nn.Module):
    """Self-attention with O(n * bucket) memory: keys and values are visited bucket by bucket.

    The result equals that of ordinary softmax attention.

    Args:
        dim, heads, dim_head: as usual.
        bucket_size: number of keys handled at a time.
    """

    def __init__(self, dim: int = 64, heads: int = 4, dim_head: int = 16, bucket_size: int = 8):
        super().__init__()
        inner_dim = heads * dim_head
        self.heads = heads
        self.scale = dim_head ** -0.5
        self.bucket_size = bucket_size
        self.to_q = nn.Linear(dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(dim, inner_dim * 2, bias=False)
        self.to_out = nn.Linear(inner_dim, dim, bias=False)

    def attend(self, q, k, v, mask: Optional[torch.Tensor] = None):
        max_neg_value = -torch.finfo(q.dtype).max
        out = torch.zeros_like(q)
        row_sum = q.new_zeros(*q.shape[:-1], 1)
        row_max = q.new_full((*q.shape[:-1], 1), max_neg_value)

        k_buckets = k.split(self.bucket_size, dim=-2)
        v_buckets = v.split(self.bucket_size, dim=-2)
        if mask is not None:
            mask_buckets = mask.split(self.bucket_size, dim=-1)
        else:
            mask_buckets = [None] * len(k_buckets)

        for kc, vc, mc in zip(k_buckets, v_buckets, mask_buckets):
            sim = torch.einsum("b h i d, b h j d -> b h i j", q, kc)
            if mc is not None:
                sim = sim.masked_fill(~mc[:, None, None, :], max_neg_value)

            new_row_max = torch.maximum(row_max, sim.amax(dim=-1, keepdim=True))
            exp_weights = torch.exp(sim - new_row_max)
            if mc is not None:
                exp_weights = exp_weights.masked_fill(~mc[:, None, None, :], 0.0)

            row_sum = torch.exp(row_max - new_row_max) * row_sum + exp_weights.sum(dim=-1, keepdim=True)
            out = out + torch.einsum("b h i j, b h j d -> b h i d", exp_weights, vc)
            row_max = new_row_max

        return out / row_sum.clamp(min=1e-8)

    def forward(self, x: torch.Tensor, mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """x: (b, n, dim), mask: (b, n) boolean, True for tokens to attend to."""
        q = self.to_q(x) * self.scale
        k, v = self.to_kv(x).chunk(2, dim=-1)
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in (q, k, v))
        out = self.attend(q, k, v, mask)
        return self.to_out(rearrange(out, "b h n d -> b n (h d)"))
