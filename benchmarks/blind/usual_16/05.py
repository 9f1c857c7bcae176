import math

import torch
from torch import nn


class T5EncoderSelfAttention(nn.Module):
    """Self attention with bucketed relative bias. As in T5 the logits are not divided by
    sqrt(d_kv); the initialisation of ``q`` takes care of it."""

    def __init__(self, d_model=64, d_kv=16, num_heads=4, num_buckets=32, max_distance=128, dropout_rate=0.0):
        super().__init__()
        self.d_model = d_model
        self.d_kv = d_kv
        self.n_heads = num_heads
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.inner_dim = num_heads * d_kv
        self.q = nn.Linear(d_model, self.inner_dim, bias=False)
        self.k = nn.Linear(d_model, self.inner_dim, bias=False)
        self.v = nn.Linear(d_model, self.inner_dim, bias=False)
        self.o = nn.Linear(self.inner_dim, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads)
        self.dropout = nn.Dropout(dropout_rate)
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.normal_(self.q.weight, std=(self.d_model * self.d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=self.d_model ** -0.5)
        nn.init.normal_(self.v.weight, std=self.d_model ** -0.5)
        nn.init.normal_(self.o.weight, std=self.inner_dim ** -0.5)
        nn.init.normal_(self.relative_attention_bias.weight, std=self.d_model ** -0.5)

    def _bucket(self, rel):
        half = self.num_buckets // 2
        bucket = (rel > 0).long() * half
        dist = rel.abs()
        exact = half // 2
        large = exact + (
            torch.log(dist.clamp(min=1).float() / exact)
            / math.log(self.max_distance / exact)
            * (half - exact)
        ).long()
        large = large.clamp(max=half - 1)
        return bucket + torch.where(dist < exact, dist, large)

    def compute_bias(self, length, device):
        ctx = torch.arange(length, device=device)[:, None]
        mem = torch.arange(length, device=device)[None, :]
        values = self.relative_attention_bias(self._bucket(mem - ctx))
        return values.permute(2, 0, 1).unsqueeze(0)

    def forward(self, hidden_states, mask=None):
        """mask: (batch, length), 1 for tokens and 0 for padding."""
        b, n, _ = hidden_states.shape

        def shape(t):
            return t.view(b, n, self.n_heads, self.d_kv).transpose(1, 2)

        q, k, v = shape(self.q(hidden_states)), shape(self.k(hidden_states)), shape(self.v(hidden_states))
        scores = torch.matmul(q, k.transpose(3, 2))
        bias = self.compute_bias(n, hidden_states.device)
        if mask is not None:
            extended = (1.0 - mask[:, None, None, :].to(scores.dtype)) * torch.finfo(scores.dtype).min
            bias = bias + extended
        scores = scores + bias
        weights = nn.functional.softmax(scores.float(), dim=-1).type_as(scores)
        weights = self.dropout(weights)
        out = torch.matmul(weights, v).transpose(1, 2).contiguous().view(b, n, self.inner_dim)
        return self.o(out)
