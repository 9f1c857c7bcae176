import math

import torch
from torch import nn


class RelativePositionBias(nn.Module):
    """Bucketed relative position bias for causal attention."""

    def __init__(self, num_buckets, max_distance, heads):
        super().__init__()
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.table = nn.Embedding(num_buckets, heads)

    def _relative_position_bucket(self, relative_position):
        # only the past is visible: everything else goes to bucket 0
        n = -torch.min(relative_position, torch.zeros_like(relative_position))
        max_exact = self.num_buckets // 2
        is_small = n < max_exact

        val_if_large = max_exact + (
            torch.log(n.clamp(min=1).float() / max_exact)
            / math.log(self.max_distance / max_exact)
            * (self.num_buckets - max_exact)
        ).long()
        val_if_large = torch.min(val_if_large, torch.full_like(val_if_large, self.num_buckets - 1))
        return torch.where(is_small, n, val_if_large)

    def forward(self, i, j, device):
        q_pos = torch.arange(j - i, j, dtype=torch.long, device=device)
        k_pos = torch.arange(j, dtype=torch.long, device=device)
        rel_pos = q_pos[:, None] - k_pos[None, :]
        values = self.table(self._relative_position_bucket(rel_pos))
        return values.permute(2, 0, 1)


class DecoderSelfAttention(nn.Module):
    def __init__(self, dim=64, heads=4, dim_head=16, num_buckets=32, max_distance=128, dropout=0.0):
        super().__init__()
        self.heads = heads
        self.scale = dim_head ** -0.5
        inner = heads * dim_head
        self.to_qkv = nn.Linear(dim, inner * 3, bias=False)
        self.to_out = nn.Linear(inner, dim, bias=False)
        self.rel_pos = RelativePositionBias(num_buckets, max_distance, heads)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = (
            t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1)
        )
        dots = q @ k.transpose(-1, -2) * self.scale
        i, j = dots.shape[-2:]
        dots = dots + self.rel_pos(i, j, x.device)

        causal_mask = torch.ones(i, j, dtype=torch.bool, device=x.device).triu(j - i + 1)
        dots = dots.masked_fill(causal_mask, -torch.finfo(dots.dtype).max)

        attn = self.dropout(dots.softmax(dim=-1))
        out = (attn @ v).transpose(1, 2).reshape(b, n, -1)
        return self.to_out(out)
