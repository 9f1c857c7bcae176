import math

import torch
import torch.nn as nn


class DecoderRelativeAttention(nn.Module):
    """T5-style decoder self-attention.

    Distances are put into logarithmic buckets and each bucket has one bias per head. As in
    T5 the dot products are not scaled; the initialisation of ``q`` takes care of that.
    """

    def __init__(self, d_model=64, num_heads=4, d_kv=16, num_buckets=32, max_distance=128, dropout=0.0):
        super().__init__()
        self.num_heads, self.d_kv = num_heads, d_kv
        self.num_buckets, self.max_distance = num_buckets, max_distance
        inner = num_heads * d_kv
        self.q = nn.Linear(d_model, inner, bias=False)
        self.k = nn.Linear(d_model, inner, bias=False)
        self.v = nn.Linear(d_model, inner, bias=False)
        self.o = nn.Linear(inner, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads)
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)

    def _bucket(self, relative_position):
        n = -torch.min(relative_position, torch.zeros_like(relative_position))
        max_exact = self.num_buckets // 2
        is_small = n < max_exact
        large = max_exact + (
            torch.log(n.float().clamp(min=1) / max_exact)
            / math.log(self.max_distance / max_exact)
            * (self.num_buckets - max_exact)
        ).long()
        large = large.clamp(max=self.num_buckets - 1)
        return torch.where(is_small, n, large)

    def compute_bias(self, length, device):
        context = torch.arange(length, device=device)[:, None]
        memory = torch.arange(length, device=device)[None, :]
        buckets = self._bucket(context - memory)
        return self.relative_attention_bias(buckets).permute(2, 0, 1).unsqueeze(0)

    def forward(self, hidden):
        B, T, _ = hidden.shape

        def shape(t):
            return t.view(B, T, self.num_heads, self.d_kv).transpose(1, 2)

        q, k, v = shape(self.q(hidden)), shape(self.k(hidden)), shape(self.v(hidden))
        scores = torch.matmul(q, k.transpose(3, 2))
        scores = scores + self.compute_bias(T, hidden.device)
        future = torch.ones(T, T, dtype=torch.bool, device=hidden.device).triu(1)
        scores = scores.masked_fill(future, torch.finfo(scores.dtype).min)
        weights = self.dropout(torch.softmax(scores.float(), dim=-1).type_as(scores))
        out = torch.matmul(weights, v).transpose(1, 2).reshape(B, T, -1)
        return self.o(out)
