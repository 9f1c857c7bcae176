import math
from typing import Optional

import torch
from torch import Tensor, nn


def causal_bucket(relative_position: Tensor, num_buckets: int, max_distance: int) -> Tensor:
    """Half of the buckets are exact, the rest grow logarithmically up to ``max_distance``."""
    distance = -torch.min(relative_position, torch.zeros_like(relative_position))
    max_exact = num_buckets // 2
    is_small = distance < max_exact
    large = max_exact + (
        torch.log(distance.float().clamp(min=1) / max_exact)
        / math.log(max_distance / max_exact)
        * (num_buckets - max_exact)
    ).long()
    large = large.clamp(max=num_buckets - 1)
    return torch.where(is_small, distance, large)


class RelativePositionBias(nn.Module):
    def __init__(self, num_heads: int, num_buckets: int = 32, max_distance: int = 128):
        super().__init__()
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.embedding = nn.Embedding(num_buckets, num_heads)

    def forward(self, q_len: int, k_len: int, device=None) -> Tensor:
        q_pos = torch.arange(k_len - q_len, k_len, device=device)[:, None]
        k_pos = torch.arange(k_len, device=device)[None, :]
        bucket = causal_bucket(q_pos - k_pos, self.num_buckets, self.max_distance)
        return self.embedding(bucket).permute(2, 0, 1)[None]


class DecoderSelfAttention(nn.Module):
    """Causal self attention whose only position information is a learned T5 bias."""

    def __init__(self, dim: int = 64, num_heads: int = 4, num_buckets: int = 32, dropout: float = 0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.rel_bias = RelativePositionBias(num_heads, num_buckets)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, key_mask: Optional[Tensor] = None) -> Tensor:
        """
        Args:
            x: (batch, length, dim)
            key_mask: optional bool (batch, length), True for real tokens
        """
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)

        scores = torch.matmul(q, k.transpose(-1, -2)) * self.head_dim ** -0.5
        scores = scores + self.rel_bias(n, n, device=x.device)

        allowed = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()[None, None]
        if key_mask is not None:
            allowed = allowed & key_mask[:, None, None, :]
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)

        attn = self.dropout(scores.softmax(dim=-1))
        y = torch.matmul(attn, v).transpose(1, 2).reshape(b, n, -1)
        return self.out(y)
