import math

import torch
from torch import nn


class RelativePositionBias(nn.Module):
    """Logarithmically bucketed relative position bias (T5)."""

    def __init__(self, num_heads, causal, num_buckets=32, max_distance=128):
        super().__init__()
        self.causal = causal
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.embedding = nn.Embedding(num_buckets, num_heads)

    def _relative_position_bucket(self, relative_position):
        num_buckets = self.num_buckets
        buckets = 0
        n = -relative_position
        if not self.causal:
            num_buckets //= 2
            buckets = buckets + (n < 0).long() * num_buckets
            n = torch.abs(n)
        else:
            n = torch.max(n, torch.zeros_like(n))

        max_exact = num_buckets // 2
        is_small = n < max_exact
        val_if_large = max_exact + (
            torch.log(n.clamp(min=1).float() / max_exact)
            / math.log(self.max_distance / max_exact)
            * (num_buckets - max_exact)
        ).long()
        val_if_large = torch.min(val_if_large, torch.full_like(val_if_large, num_buckets - 1))
        return buckets + torch.where(is_small, n, val_if_large)

    def forward(self, q_len, k_len, device=None):
        q_pos = torch.arange(q_len, device=device)
        k_pos = torch.arange(k_len, device=device)
        relative_position = q_pos[:, None] - k_pos[None, :]
        bucket = self._relative_position_bucket(relative_position)
        return self.embedding(bucket).permute(2, 0, 1).unsqueeze(0)


class CausalT5Attention(nn.Module):
    """Decoder self-attention with a bucketed relative bias; T5 does not scale the logits."""

    def __init__(self, d_model=64, num_heads=4, num_buckets=32, max_distance=128, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.d_head = d_model // num_heads
        self.to_q = nn.Linear(d_model, d_model, bias=False)
        self.to_k = nn.Linear(d_model, d_model, bias=False)
        self.to_v = nn.Linear(d_model, d_model, bias=False)
        self.to_out = nn.Linear(d_model, d_model, bias=False)
        self.rel_pos_bias = RelativePositionBias(num_heads, True, num_buckets, max_distance)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = (
            proj(x).reshape(b, n, self.num_heads, self.d_head).transpose(1, 2)
            for proj in (self.to_q, self.to_k, self.to_v)
        )
        sim = q @ k.mT
        sim = sim + self.rel_pos_bias(n, n, device=x.device)
        future = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        sim = sim.masked_fill(future, torch.finfo(sim.dtype).min)
        attn = self.dropout(sim.softmax(dim=-1))
        return self.to_out((attn @ v).transpose(1, 2).reshape(b, n, -1))
