import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class RelativePositionBias(nn.Module):
    def __init__(self, num_heads, num_buckets=32, max_distance=128):
        super().__init__()
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.embedding = nn.Embedding(num_buckets, num_heads)

    def _bucket(self, rel):
        n = -torch.minimum(rel, torch.zeros_like(rel))
        exact = self.num_buckets // 2
        log_ratio = torch.log(n.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        far = exact + (log_ratio * (self.num_buckets - exact)).long()
        far = far.clamp(max=self.num_buckets - 1)
        return torch.where(n < exact, n, far)

    def forward(self, q_len, k_len, device):
        q_pos = torch.arange(k_len - q_len, k_len, device=device)
        k_pos = torch.arange(k_len, device=device)
        rel = q_pos[:, None] - k_pos[None, :]
        return self.embedding(self._bucket(rel)).permute(2, 0, 1)[None]


class DecoderSelfAttention(nn.Module):
    """Causal self-attention with T5 buckets: nearby distances get their own bucket, distant ones share
    logarithmically growing buckets up to `max_distance`."""

    def __init__(self, dim=64, num_heads=4, num_buckets=32, max_distance=128, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.position_bias = RelativePositionBias(num_heads, num_buckets, max_distance)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)

        logits = torch.einsum("bhid,bhjd->bhij", q, k) * self.head_dim ** -0.5
        logits = logits + self.position_bias(n, n, x.device)
        causal = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        logits = logits.masked_fill(causal, torch.finfo(logits.dtype).min)

        attn = self.dropout(F.softmax(logits, dim=-1))
        y = torch.einsum("bhij,bhjd->bihd", attn, v).reshape(b, n, d)
        return self.out(y)
