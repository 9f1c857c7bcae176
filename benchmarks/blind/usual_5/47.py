import math

import torch
from torch import nn


class T5DecoderSelfAttention(nn.Module):
    """Self-attention of the T5 decoder: bucketed relative bias, unscaled logits, causal.

    ``num_buckets`` buckets cover the distance to the past token: half of them one distance
    each, the others growing logarithmically up to ``max_distance``.
    """

    def __init__(self, d_model=128, num_heads=4, d_kv=32, num_buckets=32, max_distance=128, dropout_rate=0.0):
        super().__init__()
        self.n_heads = num_heads
        self.d_kv = d_kv
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.inner_dim = num_heads * d_kv
        self.q = nn.Linear(d_model, self.inner_dim, bias=False)
        self.k = nn.Linear(d_model, self.inner_dim, bias=False)
        self.v = nn.Linear(d_model, self.inner_dim, bias=False)
        self.o = nn.Linear(self.inner_dim, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads)
        self.dropout = nn.Dropout(dropout_rate)
        factor = d_model ** -0.5
        nn.init.normal_(self.q.weight, std=factor * d_kv ** -0.5)
        nn.init.normal_(self.k.weight, std=factor)
        nn.init.normal_(self.v.weight, std=factor)
        nn.init.normal_(self.o.weight, std=self.inner_dim ** -0.5)

    def _relative_position_bucket(self, relative_position):
        relative_position = -torch.min(relative_position, torch.zeros_like(relative_position))
        max_exact = self.num_buckets // 2
        is_small = relative_position < max_exact
        large = max_exact + (
            torch.log(relative_position.float().clamp(min=1) / max_exact)
            / math.log(self.max_distance / max_exact)
            * (self.num_buckets - max_exact)
        ).to(torch.long)
        large = large.clamp(max=self.num_buckets - 1)
        return torch.where(is_small, relative_position, large)

    def compute_bias(self, query_length, key_length, device):
        context_position = torch.arange(query_length, device=device)[:, None]
        memory_position = torch.arange(key_length, device=device)[None, :]
        relative_position = context_position - memory_position
        buckets = self._relative_position_bucket(relative_position)
        return self.relative_attention_bias(buckets).permute(2, 0, 1).unsqueeze(0)

    def forward(self, hidden_states, attention_mask=None):
        b, t, _ = hidden_states.shape

        def shape(states):
            return states.view(b, t, self.n_heads, self.d_kv).transpose(1, 2)

        q, k, v = shape(self.q(hidden_states)), shape(self.k(hidden_states)), shape(self.v(hidden_states))
        scores = torch.matmul(q, k.transpose(3, 2))
        scores = scores + self.compute_bias(t, t, scores.device)

        min_value = torch.finfo(scores.dtype).min
        causal = torch.ones(t, t, dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~causal, min_value)
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask[:, None, None, :] == 0, min_value)

        weights = self.dropout(nn.functional.softmax(scores.float(), dim=-1).type_as(scores))
        out = torch.matmul(weights, v).transpose(1, 2).reshape(b, t, self.inner_dim)
        return self.o(out)
