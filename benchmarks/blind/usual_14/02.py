import math

import torch
import torch.nn as nn


def relative_position_bucket(relative_position, bidirectional, num_buckets, max_distance):
    """Port of mesh_tensorflow's bucketing; relative_position = memory_position - query_position."""
    buckets = torch.zeros_like(relative_position)
    if bidirectional:
        num_buckets //= 2
        buckets = buckets + (relative_position > 0).long() * num_buckets
        relative_position = relative_position.abs()
    else:
        relative_position = -torch.min(relative_position, torch.zeros_like(relative_position))
    max_exact = num_buckets // 2
    is_small = relative_position < max_exact
    large = max_exact + (
        torch.log(relative_position.float().clamp(min=1) / max_exact)
        / math.log(max_distance / max_exact)
        * (num_buckets - max_exact)
    ).long()
    large = torch.min(large, torch.full_like(large, num_buckets - 1))
    return buckets + torch.where(is_small, relative_position, large)


class T5SelfAttention(nn.Module):
    """T5 attention. As in the original, the logits are not divided by sqrt(d_kv):
    the factor is folded into the initialization of the query projection."""

    def __init__(self, d_model=64, num_heads=4, d_kv=16, num_buckets=32, max_distance=128, is_decoder=False):
        super().__init__()
        self.is_decoder = is_decoder
        self.n_heads, self.d_kv = num_heads, d_kv
        self.num_buckets, self.max_distance = num_buckets, max_distance
        inner = num_heads * d_kv
        self.q = nn.Linear(d_model, inner, bias=False)
        self.k = nn.Linear(d_model, inner, bias=False)
        self.v = nn.Linear(d_model, inner, bias=False)
        self.o = nn.Linear(inner, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads)
        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=d_model**-0.5)
        nn.init.normal_(self.v.weight, std=d_model**-0.5)

    def compute_bias(self, q_len, k_len, device):
        context = torch.arange(q_len, device=device)[:, None]
        memory = torch.arange(k_len, device=device)[None, :]
        buckets = relative_position_bucket(
            memory - context, not self.is_decoder, self.num_buckets, self.max_distance
        )
        return self.relative_attention_bias(buckets).permute(2, 0, 1).unsqueeze(0)

    def forward(self, hidden_states, attention_mask=None):
        """attention_mask: (batch, seq), 1 for real tokens and 0 for padding."""
        b, t, _ = hidden_states.shape

        def shape(x):
            return x.view(b, t, self.n_heads, self.d_kv).transpose(1, 2)

        q, k, v = shape(self.q(hidden_states)), shape(self.k(hidden_states)), shape(self.v(hidden_states))
        scores = q @ k.transpose(-1, -2)
        scores = scores + self.compute_bias(t, t, scores.device)
        neg = torch.finfo(scores.dtype).min
        if self.is_decoder:
            future = torch.ones(t, t, dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(future, neg)
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask[:, None, None, :] == 0, neg)
        weights = scores.float().softmax(dim=-1).type_as(scores)
        out = (weights @ v).transpose(1, 2).reshape(b, t, -1)
        return self.o(out)
