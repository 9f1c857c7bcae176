import math

import torch
from torch import nn


class T5DecoderSelfAttention(nn.Module):
    """Causal self-attention with T5 relative position buckets. As in T5, the logits are not scaled; the
    factor is part of the initialisation of ``q``."""

    def __init__(
        self,
        d_model: int = 64,
        d_kv: int = 16,
        num_heads: int = 4,
        relative_attention_num_buckets: int = 32,
        relative_attention_max_distance: int = 128,
        dropout_rate: float = 0.0,
    ):
        super().__init__()
        self.d_kv = d_kv
        self.n_heads = num_heads
        self.num_buckets = relative_attention_num_buckets
        self.max_distance = relative_attention_max_distance
        inner = d_kv * num_heads
        self.q = nn.Linear(d_model, inner, bias=False)
        self.k = nn.Linear(d_model, inner, bias=False)
        self.v = nn.Linear(d_model, inner, bias=False)
        self.o = nn.Linear(inner, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(relative_attention_num_buckets, num_heads)
        self.dropout = dropout_rate
        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=d_model ** -0.5)
        nn.init.normal_(self.v.weight, std=d_model ** -0.5)
        nn.init.normal_(self.o.weight, std=inner ** -0.5)

    @staticmethod
    def _relative_position_bucket(relative_position, num_buckets, max_distance):
        """Unidirectional variant: only the past has its own buckets."""
        relative_position = -torch.min(relative_position, torch.zeros_like(relative_position))
        max_exact = num_buckets // 2
        is_small = relative_position < max_exact
        large = max_exact + (
            torch.log(relative_position.clamp(min=1).float() / max_exact)
            / math.log(max_distance / max_exact)
            * (num_buckets - max_exact)
        ).to(torch.long)
        large = torch.min(large, torch.full_like(large, num_buckets - 1))
        return torch.where(is_small, relative_position, large)

    def compute_bias(self, query_length, key_length, device):
        context_position = torch.arange(query_length, dtype=torch.long, device=device)[:, None]
        memory_position = torch.arange(key_length, dtype=torch.long, device=device)[None, :]
        relative_position = context_position - memory_position
        buckets = self._relative_position_bucket(relative_position, self.num_buckets, self.max_distance)
        return self.relative_attention_bias(buckets).permute(2, 0, 1).unsqueeze(0)

    def forward(self, hidden_states, position_bias=None):
        B, T, _ = hidden_states.shape

        def shape(t):
            return t.view(B, T, self.n_heads, self.d_kv).transpose(1, 2)

        q, k, v = shape(self.q(hidden_states)), shape(self.k(hidden_states)), shape(self.v(hidden_states))
        scores = torch.matmul(q, k.transpose(3, 2))
        if position_bias is None:
            position_bias = self.compute_bias(T, T, scores.device)
            causal = torch.ones(T, T, dtype=torch.bool, device=scores.device).tril()
            position_bias = position_bias.masked_fill(~causal, torch.finfo(scores.dtype).min)
        scores = scores + position_bias
        weights = nn.functional.softmax(scores.float(), dim=-1).type_as(scores)
        weights = nn.functional.dropout(weights, p=self.dropout, training=self.training)
        out = torch.matmul(weights, v).transpose(1, 2).contiguous().view(B, T, -1)
        return self.o(out), position_bias
