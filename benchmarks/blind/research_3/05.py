import math

import torch
from torch import nn


class T5Attention(nn.Module):
    """T5 self attention.

    There is no 1/sqrt(d) here: as in mesh-tensorflow, the factor is folded into
    the initialisation of the query weights (std = (inner * d_kv) ** -0.5).

    ``mask`` is the extended mask of the encoder: 0 for tokens, a large negative
    number for padding, broadcastable to (batch, heads, q_len, k_len).
    """

    def __init__(self, d_model=64, d_kv=16, num_heads=4, num_buckets=32, max_distance=128,
                 is_decoder=False, dropout_rate=0.1):
        super().__init__()
        self.d_model, self.d_kv, self.n_heads = d_model, d_kv, num_heads
        self.num_buckets, self.max_distance = num_buckets, max_distance
        self.is_decoder = is_decoder
        self.dropout = dropout_rate
        inner = num_heads * d_kv
        self.q = nn.Linear(d_model, inner, bias=False)
        self.k = nn.Linear(d_model, inner, bias=False)
        self.v = nn.Linear(d_model, inner, bias=False)
        self.o = nn.Linear(inner, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads)
        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=d_model ** -0.5)
        nn.init.normal_(self.v.weight, std=d_model ** -0.5)
        nn.init.normal_(self.o.weight, std=inner ** -0.5)
        nn.init.normal_(self.relative_attention_bias.weight, std=d_model ** -0.5)

    @staticmethod
    def _bucket(rel, bidirectional, num_buckets, max_distance):
        out = torch.zeros_like(rel)
        if bidirectional:
            num_buckets //= 2
            out = out + (rel > 0).long() * num_buckets
            rel = rel.abs()
        else:
            rel = -torch.min(rel, torch.zeros_like(rel))
        max_exact = num_buckets // 2
        is_small = rel < max_exact
        large = max_exact + (
            torch.log(rel.float().clamp(min=1) / max_exact)
            / math.log(max_distance / max_exact)
            * (num_buckets - max_exact)
        ).long()
        large = torch.clamp(large, max=num_buckets - 1)
        return out + torch.where(is_small, rel, large)

    def compute_bias(self, length, device):
        ctx = torch.arange(length, device=device)[:, None]
        mem = torch.arange(length, device=device)[None, :]
        buckets = self._bucket(mem - ctx, not self.is_decoder, self.num_buckets, self.max_distance)
        return self.relative_attention_bias(buckets).permute(2, 0, 1).unsqueeze(0)

    def forward(self, hidden_states, mask=None, position_bias=None):
        b, t, _ = hidden_states.shape

        def shape(s):
            return s.view(b, -1, self.n_heads, self.d_kv).transpose(1, 2)

        q, k, v = shape(self.q(hidden_states)), shape(self.k(hidden_states)), shape(self.v(hidden_states))
        scores = torch.matmul(q, k.transpose(3, 2))

        if position_bias is None:
            position_bias = self.compute_bias(t, scores.device)
            if self.is_decoder:
                future = torch.ones(t, t, dtype=torch.bool, device=scores.device).triu(1)
                position_bias = position_bias.masked_fill(future, torch.finfo(scores.dtype).min)
            if mask is not None:
                position_bias = torch.clamp(position_bias + mask, min=torch.finfo(scores.dtype).min)
        scores = scores + position_bias

        weights = nn.functional.softmax(scores.float(), dim=-1).type_as(scores)
        weights = nn.functional.dropout(weights, p=self.dropout, training=self.training)
        out = torch.matmul(weights, v).transpose(1, 2).contiguous().view(b, t, -1)
        # position_bias (mask included) is handed on to the layers above
        return self.o(out), position_bias
