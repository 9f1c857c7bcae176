import math
from typing import Optional

import torch
from torch import nn


class RelativeBias(nn.Module):
    """Bucketed relative position bias for causal decoders (T5, bidirectional=False)."""

    def __init__(self, num_buckets: int, max_distance: int, num_heads: int):
        super().__init__()
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.embedding = nn.Embedding(num_buckets, num_heads)

    def bucket(self, relative_position):
        n = -torch.min(relative_position, torch.zeros_like(relative_position))
        max_exact = self.num_buckets // 2
        is_small = n < max_exact
        val_if_large = max_exact + (
            torch.log(n.float().clamp(min=1) / max_exact)
            / math.log(self.max_distance / max_exact)
            * (self.num_buckets - max_exact)
        ).long()
        val_if_large = val_if_large.clamp(max=self.num_buckets - 1)
        return torch.where(is_small, n, val_if_large)

    def forward(self, query_length: int, key_length: int, device=None):
        context_position = torch.arange(key_length - query_length, key_length, device=device)[:, None]
        memory_position = torch.arange(key_length, device=device)[None, :]
        relative_position = context_position - memory_position
        values = self.embedding(self.bucket(relative_position))
        return values.permute(2, 0, 1).unsqueeze(0)


class DecoderSelfAttention(nn.Module):
    def __init__(self, d_model: int = 64, d_kv: int = 16, num_heads: int = 4,
                 num_buckets: int = 32, max_distance: int = 128):
        super().__init__()
        self.num_heads = num_heads
        self.d_kv = d_kv
        inner = d_kv * num_heads
        self.q = nn.Linear(d_model, inner, bias=False)
        self.k = nn.Linear(d_model, inner, bias=False)
        self.v = nn.Linear(d_model, inner, bias=False)
        self.o = nn.Linear(inner, d_model, bias=False)
        self.position_bias = RelativeBias(num_buckets, max_distance, num_heads)
        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=d_model ** -0.5)

    def forward(self, hidden_states: torch.Tensor, past: Optional[tuple] = None):
        b, n, _ = hidden_states.shape
        q, k, v = (
            proj(hidden_states).view(b, n, self.num_heads, self.d_kv).transpose(1, 2)
            for proj in (self.q, self.k, self.v)
        )
        if past is not None:
            k = torch.cat([past[0], k], dim=2)
            v = torch.cat([past[1], v], dim=2)
        s = k.size(2)
        scores = q @ k.transpose(-1, -2)
        scores = scores + self.position_bias(n, s, device=scores.device)
        future = torch.ones(n, s, dtype=torch.bool, device=scores.device).triu(s - n + 1)
        scores = scores.masked_fill(future, float("-inf"))
        out = scores.softmax(dim=-1) @ v
        out = out.transpose(1, 2).reshape(b, n, -1)
        return self.o(out), (k, v)
