import math

import torch
from torch import nn


class T5SelfAttention(nn.Module):
    """Encoder or decoder self-attention of T5.

    There is no 1/sqrt(d) factor: as in the Mesh TensorFlow code it is folded into the
    initialisation of the query weights. `inner_dim` may differ from `d_model`.
    """

    def __init__(
        self,
        d_model=64,
        num_heads=4,
        d_kv=24,
        is_decoder=False,
        num_buckets=32,
        max_distance=128,
        dropout_rate=0.0,
    ):
        super().__init__()
        self.n_heads, self.d_kv = num_heads, d_kv
        self.is_decoder = is_decoder
        self.num_buckets, self.max_distance = num_buckets, max_distance
        inner_dim = num_heads * d_kv
        self.q = nn.Linear(d_model, inner_dim, bias=False)
        self.k = nn.Linear(d_model, inner_dim, bias=False)
        self.v = nn.Linear(d_model, inner_dim, bias=False)
        self.o = nn.Linear(inner_dim, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads)
        self.dropout = dropout_rate
        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=d_model**-0.5)
        nn.init.normal_(self.v.weight, std=d_model**-0.5)
        nn.init.normal_(self.o.weight, std=inner_dim**-0.5)

    def _bucket(self, rel):
        n_buckets = self.num_buckets
        ret = torch.zeros_like(rel)
        if not self.is_decoder:
            n_buckets //= 2
            ret = ret + (rel > 0).long() * n_buckets
            rel = rel.abs()
        else:
            rel = -torch.min(rel, torch.zeros_like(rel))
        max_exact = n_buckets // 2
        large = max_exact + (
            torch.log(rel.clamp(min=1).float() / max_exact)
            / math.log(self.max_distance / max_exact)
            * (n_buckets - max_exact)
        ).long()
        large = large.clamp(max=n_buckets - 1)
        return ret + torch.where(rel < max_exact, rel, large)

    def compute_bias(self, length, device):
        ctx = torch.arange(length, device=device)[:, None]
        mem = torch.arange(length, device=device)[None, :]
        values = self.relative_attention_bias(self._bucket(mem - ctx))
        return values.permute(2, 0, 1).unsqueeze(0)

    def forward(self, hidden_states, attention_mask=None):
        """attention_mask: (batch, length), 1 for tokens and 0 for padding."""
        b, n, _ = hidden_states.shape

        def shape(t):
            return t.view(b, n, self.n_heads, self.d_kv).transpose(1, 2)

        q, k, v = shape(self.q(hidden_states)), shape(self.k(hidden_states)), shape(self.v(hidden_states))
        scores = q @ k.transpose(3, 2)
        bias = self.compute_bias(n, scores.device).to(scores.dtype)
        floor = torch.finfo(scores.dtype).min
        if self.is_decoder:
            future = torch.ones(n, n, dtype=torch.bool, device=scores.device).triu(1)
            bias = bias.masked_fill(future, floor)
        if attention_mask is not None:
            bias = bias.masked_fill(attention_mask[:, None, None, :] == 0, floor)
        weights = (scores + bias).float().softmax(-1).type_as(scores)
        weights = nn.functional.dropout(weights, p=self.dropout, training=self.training)
        out = (weights @ v).transpose(1, 2).reshape(b, n, -1)
        return self.o(out)
