import math

import torch
from torch import nn


class T5Attention(nn.Module):
    """T5 self attention.

    There is no 1/sqrt(d) here: T5 puts that factor into the initialisation of the query weights.
    The first layer of a stack owns the table of relative biases and hands ``position_bias`` on
    to the others.
    """

    def __init__(
        self,
        d_model=64,
        d_kv=16,
        num_heads=4,
        is_decoder=False,
        has_relative_attention_bias=True,
        num_buckets=32,
        max_distance=128,
        dropout_rate=0.0,
    ):
        super().__init__()
        self.is_decoder = is_decoder
        self.n_heads = num_heads
        self.d_kv = d_kv
        self.inner = num_heads * d_kv
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.dropout = dropout_rate
        self.q = nn.Linear(d_model, self.inner, bias=False)
        self.k = nn.Linear(d_model, self.inner, bias=False)
        self.v = nn.Linear(d_model, self.inner, bias=False)
        self.o = nn.Linear(self.inner, d_model, bias=False)
        self.bias = nn.Embedding(num_buckets, num_heads) if has_relative_attention_bias else None
        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=d_model ** -0.5)
        nn.init.normal_(self.v.weight, std=d_model ** -0.5)
        nn.init.normal_(self.o.weight, std=self.inner ** -0.5)

    def _bucket(self, rel):
        """rel = key position - query position."""
        buckets = self.num_buckets
        out = torch.zeros_like(rel)
        if self.is_decoder:
            rel = (-rel).clamp(min=0)
        else:
            buckets //= 2
            out = out + (rel > 0).long() * buckets
            rel = rel.abs()
        exact = buckets // 2
        far = exact + (
            torch.log(rel.float().clamp(min=1) / exact) / math.log(self.max_distance / exact) * (buckets - exact)
        ).long()
        far = far.clamp(max=buckets - 1)
        return out + torch.where(rel < exact, rel, far)

    def compute_bias(self, length, device):
        pos = torch.arange(length, device=device)
        rel = pos[None, :] - pos[:, None]
        return self.bias(self._bucket(rel)).permute(2, 0, 1).unsqueeze(0)

    def forward(self, x, mask=None, position_bias=None):
        """mask: additive, broadcastable to [B, heads, T, T] (0 keep, large negative drop)."""
        b, t, _ = x.shape
        q, k, v = (m(x).view(b, t, self.n_heads, self.d_kv).transpose(1, 2) for m in (self.q, self.k, self.v))
        scores = torch.matmul(q, k.transpose(3, 2))
        if position_bias is None:
            if self.bias is not None:
                position_bias = self.compute_bias(t, x.device)
            else:
                position_bias = torch.zeros(1, self.n_heads, t, t, device=x.device, dtype=scores.dtype)
            if self.is_decoder:
                future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
                position_bias = position_bias.masked_fill(future, torch.finfo(scores.dtype).min)
            if mask is not None:
                # clamped so that two masks on one cell cannot overflow to -inf
                position_bias = (position_bias + mask).clamp(min=torch.finfo(scores.dtype).min)
        scores = scores + position_bias
        weights = nn.functional.softmax(scores.float(), dim=-1).type_as(scores)
        weights = nn.functional.dropout(weights, p=self.dropout, training=self.training)
        out = torch.matmul(weights, v).transpose(1, 2).reshape(b, t, self.inner)
        return self.o(out), position_bias
