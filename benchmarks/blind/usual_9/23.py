import math

import torch
from torch import nn


class T5SelfAttention(nn.Module):
    """
    T5 self-attention with a learned bias per bucket of relative positions. As in T5 the scores are not divided by
    sqrt(d_kv); the initialisation of the query projection takes care of the scale.
    """

    def __init__(
        self,
        d_model=256,
        d_kv=32,
        num_heads=8,
        relative_attention_num_buckets=32,
        relative_attention_max_distance=128,
        dropout_rate=0.0,
        is_decoder=True,
    ):
        super().__init__()
        self.is_decoder = is_decoder
        self.num_buckets = relative_attention_num_buckets
        self.max_distance = relative_attention_max_distance
        self.key_value_proj_dim = d_kv
        self.n_heads = num_heads
        self.dropout = dropout_rate
        inner_dim = num_heads * d_kv

        self.q = nn.Linear(d_model, inner_dim, bias=False)
        self.k = nn.Linear(d_model, inner_dim, bias=False)
        self.v = nn.Linear(d_model, inner_dim, bias=False)
        self.o = nn.Linear(inner_dim, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(self.num_buckets, self.n_heads)
        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=d_model ** -0.5)
        nn.init.normal_(self.v.weight, std=d_model ** -0.5)
        nn.init.normal_(self.o.weight, std=inner_dim ** -0.5)

    @staticmethod
    def _relative_position_bucket(relative_position, bidirectional=True, num_buckets=32, max_distance=128):
        relative_buckets = torch.zeros_like(relative_position)
        if bidirectional:
            num_buckets //= 2
            relative_buckets = relative_buckets + (relative_position > 0).long() * num_buckets
            relative_position = torch.abs(relative_position)
        else:
            relative_position = -torch.min(relative_position, torch.zeros_like(relative_position))

        # half of the buckets are for exact increments in positions, the others are logarithmic
        max_exact = num_buckets // 2
        is_small = relative_position < max_exact
        if_large = max_exact + (
            torch.log(relative_position.float().clamp(min=1) / max_exact)
            / math.log(max_distance / max_exact)
            * (num_buckets - max_exact)
        ).long()
        if_large = torch.clamp(if_large, max=num_buckets - 1)
        return relative_buckets + torch.where(is_small, relative_position, if_large)

    def compute_bias(self, query_length, key_length, device):
        context_position = torch.arange(query_length, dtype=torch.long, device=device)[:, None]
        memory_position = torch.arange(key_length, dtype=torch.long, device=device)[None, :]
        relative_position = context_position - memory_position
        buckets = self._relative_position_bucket(
            relative_position,
            bidirectional=not self.is_decoder,
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
        )
        return self.relative_attention_bias(buckets).permute(2, 0, 1).unsqueeze(0)

    def forward(self, hidden_states, attention_mask=None):
        """attention_mask: (batch, length), 1 for tokens and 0 for padding."""
        b, n, _ = hidden_states.shape
        q, k, v = (
            proj(hidden_states).view(b, n, self.n_heads, self.key_value_proj_dim).transpose(1, 2)
            for proj in (self.q, self.k, self.v)
        )
        scores = torch.matmul(q, k.transpose(3, 2))
        scores = scores + self.compute_bias(n, n, hidden_states.device)

        allowed = torch.ones(n, n, dtype=torch.bool, device=scores.device)
        if self.is_decoder:
            allowed = allowed.tril()
        allowed = allowed[None, None]
        if attention_mask is not None:
            allowed = allowed & attention_mask[:, None, None, :].bool()
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)

        weights = nn.functional.softmax(scores.float(), dim=-1).type_as(scores)
        weights = nn.functional.dropout(weights, p=self.dropout, training=self.training)
        out = torch.matmul(weights, v).transpose(1, 2).reshape(b, n, -1)
        return self.o(out)
