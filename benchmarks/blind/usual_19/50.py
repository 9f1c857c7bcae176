import math

import torch
import torch.nn as nn


class T5DecoderSelfAttention(nn.Module):
    """Causal self-attention with bucketed relative position bias, following T5 (no 1/sqrt(d) by design).

    Half of the buckets hold exact distances to earlier tokens, the other half grows
    logarithmically up to `max_distance`.
    """

    def __init__(self, d_model=64, num_heads=4, d_kv=16, num_buckets=32, max_distance=128, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.d_kv = d_kv
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        inner = num_heads * d_kv
        self.q = nn.Linear(d_model, inner, bias=False)
        self.k = nn.Linear(d_model, inner, bias=False)
        self.v = nn.Linear(d_model, inner, bias=False)
        self.o = nn.Linear(inner, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads)
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)

    def relative_position_bucket(self, relative_position):
        relative_position = -torch.min(relative_position, torch.zeros_like(relative_position))
        max_exact = self.num_buckets // 2
        is_small = relative_position < max_exact
        if_large = max_exact + (
            torch.log(relative_position.float().clamp(min=1) / max_exact)
            / math.log(self.max_distance / max_exact)
            * (self.num_buckets - max_exact)
        ).long()
        if_large = if_large.clamp(max=self.num_buckets - 1)
        return torch.where(is_small, relative_position, if_large)

    def compute_bias(self, length, device):
        context_position = torch.arange(length, device=device)[:, None]
        memory_position = torch.arange(length, device=device)[None, :]
        buckets = self.relative_position_bucket(context_position - memory_position)
        return self.relative_attention_bias(buckets).permute(2, 0, 1).unsqueeze(0)

    def forward(self, hidden_states):
        b, n, _ = hidden_states.shape
        q = self.q(hidden_states).view(b, n, self.num_heads, self.d_kv).transpose(1, 2)
        k = self.k(hidden_states).view(b, n, self.num_heads, self.d_kv).transpose(1, 2)
        v = self.v(hidden_states).view(b, n, self.num_heads, self.d_kv).transpose(1, 2)

        scores = torch.matmul(q, k.transpose(-1, -2))
        scores = scores + self.compute_bias(n, hidden_states.device)
        future = torch.ones(n, n, dtype=torch.bool, device=hidden_states.device).triu(1)
        scores = scores.masked_fill(future, torch.finfo(scores.dtype).min)

        weights = self.dropout(torch.softmax(scores.float(), dim=-1).type_as(scores))
        out = torch.matmul(weights, v).transpose(1, 2).reshape(b, n, -1)
        return self.o(out)
