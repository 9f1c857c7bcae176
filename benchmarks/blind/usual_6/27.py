import math
from typing import Optional

import torch
from torch import nn


class T5Attention(nn.Module):
    """T5 attention with bucketed relative position bias.

    The scores are not divided by sqrt(d_kv): T5 folds that factor into the
    initialisation of the query projection. The bias table lives in the first layer of a
    stack, which returns the computed bias so that the other layers can be given it.
    """

    def __init__(self, d_model=64, d_kv=16, num_heads=4, has_relative_attention_bias=True,
                 is_decoder=False, num_buckets=32, max_distance=128, dropout_rate=0.0):
        super().__init__()
        self.is_decoder = is_decoder
        self.n_heads, self.d_kv = num_heads, d_kv
        self.num_buckets, self.max_distance = num_buckets, max_distance
        self.dropout = nn.Dropout(dropout_rate)
        inner = num_heads * d_kv
        self.q = nn.Linear(d_model, inner, bias=False)
        self.k = nn.Linear(d_model, inner, bias=False)
        self.v = nn.Linear(d_model, inner, bias=False)
        self.o = nn.Linear(inner, d_model, bias=False)
        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=d_model ** -0.5)
        nn.init.normal_(self.v.weight, std=d_model ** -0.5)
        nn.init.normal_(self.o.weight, std=inner ** -0.5)
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads) if has_relative_attention_bias else None

    def _bucket(self, relative_position):
        """relative_position = key position - query position"""
        n = self.num_buckets
        bucket = torch.zeros_like(relative_position)
        if not self.is_decoder:
            n //= 2
            bucket = bucket + (relative_position > 0).long() * n
            distance = relative_position.abs()
        else:
            distance = (-relative_position).clamp(min=0)
        exact = n // 2
        log_ratio = torch.log(distance.float().clamp(min=1) / exact) / math.log(self.max_distance / exact)
        far = (exact + (log_ratio * (n - exact)).long()).clamp(max=n - 1)
        return bucket + torch.where(distance < exact, distance, far)

    def compute_bias(self, q_len, k_len, device):
        context = torch.arange(q_len, device=device)[:, None]
        memory = torch.arange(k_len, device=device)[None, :]
        values = self.relative_attention_bias(self._bucket(memory - context))
        return values.permute(2, 0, 1).unsqueeze(0)

    def forward(self, hidden_states, mask: Optional[torch.Tensor] = None,
                position_bias: Optional[torch.Tensor] = None):
        """mask: (batch, seq), 1 for tokens. Returns (output, position_bias)."""
        b, n, _ = hidden_states.shape
        q, k, v = (w(hidden_states).view(b, n, self.n_heads, self.d_kv).transpose(1, 2)
                   for w in (self.q, self.k, self.v))
        scores = torch.matmul(q, k.transpose(3, 2))

        if position_bias is None:
            if self.relative_attention_bias is not None:
                position_bias = self.compute_bias(n, n, hidden_states.device)
            else:
                position_bias = scores.new_zeros(1, self.n_heads, n, n)
        scores = scores + position_bias

        floor = torch.finfo(scores.dtype).min
        if self.is_decoder:
            future = torch.ones(n, n, dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(future, floor)
        if mask is not None:
            scores = scores.masked_fill(mask[:, None, None, :] == 0, floor)

        weights = self.dropout(scores.float().softmax(dim=-1).type_as(scores))
        out = torch.matmul(weights, v).transpose(1, 2).reshape(b, n, -1)
        return self.o(out), position_bias
