import math

import torch
from torch import nn


class T5Attention(nn.Module):
    """T5 multi-head attention with a learned, bucketed relative position bias.

    T5 does not divide the scores by sqrt(d_kv); the factor is folded into the initialisation of ``q``.

    Args:
        causal: decoder self-attention. Buckets then only cover the past.
    """

    def __init__(self, d_model=256, d_kv=32, num_heads=8, num_buckets=32, max_distance=128, causal=False,
                 dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.d_kv = d_kv
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.causal = causal
        inner = num_heads * d_kv
        self.q = nn.Linear(d_model, inner, bias=False)
        self.k = nn.Linear(d_model, inner, bias=False)
        self.v = nn.Linear(d_model, inner, bias=False)
        self.o = nn.Linear(inner, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads)
        self.dropout = dropout

        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=d_model ** -0.5)
        nn.init.normal_(self.v.weight, std=d_model ** -0.5)
        nn.init.normal_(self.o.weight, std=inner ** -0.5)
        nn.init.normal_(self.relative_attention_bias.weight, std=d_model ** -0.5)

    def _bucket(self, rel):
        """rel = key position - query position. Half of the buckets are exact, the rest logarithmic."""
        n_buckets = self.num_buckets
        offset = torch.zeros_like(rel)
        if self.causal:
            dist = (-rel).clamp(min=0)
        else:
            n_buckets //= 2
            offset = (rel > 0).long() * n_buckets
            dist = rel.abs()
        exact = n_buckets // 2
        log_ratio = torch.log(dist.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        far = exact + (log_ratio * (n_buckets - exact)).long()
        far = far.clamp(max=n_buckets - 1)
        return offset + torch.where(dist < exact, dist, far)

    def compute_bias(self, q_len, k_len, device):
        context = torch.arange(q_len, device=device)[:, None]
        memory = torch.arange(k_len, device=device)[None, :]
        values = self.relative_attention_bias(self._bucket(memory - context))
        return values.permute(2, 0, 1).unsqueeze(0)

    def forward(self, hidden_states, attention_mask=None):
        """
        hidden_states: (batch, seq, d_model)
        attention_mask: (batch, seq), 1 for tokens and 0 for padding
        """
        B, T, _ = hidden_states.shape

        def shape(t):
            return t.view(B, T, self.num_heads, self.d_kv).transpose(1, 2)

        q, k, v = shape(self.q(hidden_states)), shape(self.k(hidden_states)), shape(self.v(hidden_states))
        scores = torch.matmul(q, k.transpose(3, 2))
        scores = scores + self.compute_bias(T, T, hidden_states.device)

        allowed = torch.ones(1, 1, T, T, dtype=torch.bool, device=hidden_states.device)
        if self.causal:
            allowed = allowed.tril()
        if attention_mask is not None:
            allowed = allowed & attention_mask.bool()[:, None, None, :]
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)

        weights = nn.functional.softmax(scores.float(), dim=-1).type_as(scores)
        weights = nn.functional.dropout(weights, p=self.dropout, training=self.training)
        out = torch.matmul(weights, v).transpose(1, 2).contiguous().view(B, T, -1)
        return self.o(out)
