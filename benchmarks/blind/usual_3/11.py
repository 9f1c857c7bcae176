import math

import torch
from torch import nn


class T5Attention(nn.Module):
    """T5 encoder self attention with a bucketed relative position bias.

    T5 does not divide the logits by sqrt(d_kv); the factor is folded into the
    initialisation of the query weights instead. The projections carry no bias.
    """

    def __init__(self, d_model=64, d_kv=16, num_heads=4, num_buckets=32, max_distance=128, dropout_rate=0.0):
        super().__init__()
        self.n_heads = num_heads
        self.key_value_proj_dim = d_kv
        self.inner_dim = num_heads * d_kv
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.dropout = nn.Dropout(dropout_rate)

        self.q = nn.Linear(d_model, self.inner_dim, bias=False)
        self.k = nn.Linear(d_model, self.inner_dim, bias=False)
        self.v = nn.Linear(d_model, self.inner_dim, bias=False)
        self.o = nn.Linear(self.inner_dim, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads)

        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=d_model ** -0.5)
        nn.init.normal_(self.v.weight, std=d_model ** -0.5)
        nn.init.normal_(self.o.weight, std=self.inner_dim ** -0.5)
        nn.init.normal_(self.relative_attention_bias.weight, std=d_model ** -0.5)

    def _relative_position_bucket(self, relative_position):
        num_buckets = self.num_buckets // 2
        relative_buckets = (relative_position > 0).to(torch.long) * num_buckets
        distance = torch.abs(relative_position)

        max_exact = num_buckets // 2
        is_small = distance < max_exact
        if_large = max_exact + (
            torch.log(distance.float().clamp(min=1) / max_exact)
            / math.log(self.max_distance / max_exact)
            * (num_buckets - max_exact)
        ).to(torch.long)
        if_large = torch.min(if_large, torch.full_like(if_large, num_buckets - 1))
        return relative_buckets + torch.where(is_small, distance, if_large)

    def compute_bias(self, length, device):
        context_position = torch.arange(length, dtype=torch.long, device=device)[:, None]
        memory_position = torch.arange(length, dtype=torch.long, device=device)[None, :]
        buckets = self._relative_position_bucket(memory_position - context_position)
        return self.relative_attention_bias(buckets).permute(2, 0, 1).unsqueeze(0)

    def forward(self, hidden_states, mask=None):
        """mask: (batch, seq) with 1 for tokens and 0 for padding."""
        batch, length, _ = hidden_states.shape

        def shape(states):
            return states.view(batch, length, self.n_heads, self.key_value_proj_dim).transpose(1, 2)

        q, k, v = shape(self.q(hidden_states)), shape(self.k(hidden_states)), shape(self.v(hidden_states))
        scores = torch.matmul(q, k.transpose(3, 2))
        position_bias = self.compute_bias(length, hidden_states.device)
        if mask is not None:
            extended = (1.0 - mask[:, None, None, :].to(scores.dtype)) * torch.finfo(scores.dtype).min
            position_bias = position_bias + extended
        scores = scores + position_bias

        attn_weights = nn.functional.softmax(scores.float(), dim=-1).type_as(scores)
        attn_weights = self.dropout(attn_weights)
        out = torch.matmul(attn_weights, v).transpose(1, 2).contiguous().view(batch, length, self.inner_dim)
        return self.o(out)
