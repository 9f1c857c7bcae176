import math

import torch
from torch import nn


class T5LayerNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.eps = eps

    def forward(self, x):
        variance = x.float().pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + self.eps)).to(x.dtype)


class T5EncoderSelfAttention(nn.Module):
    """Encoder self-attention of T5.

    There is no division by sqrt(d_kv): the factor is folded into the initialisation of ``q``.
    Positions enter only through a bucketed bias, which the first layer computes and hands to the others.
    """

    def __init__(self, d_model=128, num_heads=4, d_kv=32, num_buckets=32, max_distance=128, dropout=0.1,
                 has_relative_bias=True):
        super().__init__()
        inner = num_heads * d_kv
        self.n_heads, self.d_kv = num_heads, d_kv
        self.num_buckets, self.max_distance = num_buckets, max_distance
        self.norm = T5LayerNorm(d_model)
        self.q = nn.Linear(d_model, inner, bias=False)
        self.k = nn.Linear(d_model, inner, bias=False)
        self.v = nn.Linear(d_model, inner, bias=False)
        self.o = nn.Linear(inner, d_model, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads) if has_relative_bias else None
        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=d_model**-0.5)
        nn.init.normal_(self.v.weight, std=d_model**-0.5)
        nn.init.normal_(self.o.weight, std=inner**-0.5)

    def _bucket(self, rel):
        half = self.num_buckets // 2
        offset = (rel > 0).long() * half
        rel = rel.abs()
        max_exact = half // 2
        large = max_exact + (
            torch.log(rel.clamp(min=1).float() / max_exact) / math.log(self.max_distance / max_exact) * (half - max_exact)
        ).long()
        large = large.clamp(max=half - 1)
        return offset + torch.where(rel < max_exact, rel, large)

    def compute_bias(self, length, device):
        pos = torch.arange(length, device=device)
        rel = pos[None, :] - pos[:, None]
        return self.relative_attention_bias(self._bucket(rel)).permute(2, 0, 1).unsqueeze(0)

    def forward(self, hidden, mask=None, position_bias=None):
        """mask: [B, T], 1 for tokens and 0 for padding. Returns (hidden, position_bias)."""
        b, t, _ = hidden.shape
        x = self.norm(hidden)
        q, k, v = (f(x).view(b, t, self.n_heads, self.d_kv).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = torch.matmul(q, k.transpose(3, 2))
        if position_bias is None:
            if self.relative_attention_bias is not None:
                position_bias = self.compute_bias(t, hidden.device)
            else:
                position_bias = torch.zeros(1, self.n_heads, t, t, device=hidden.device, dtype=scores.dtype)
        scores = scores + position_bias
        if mask is not None:
            scores = scores + (1.0 - mask[:, None, None, :].to(scores.dtype)) * torch.finfo(scores.dtype).min
        attn = self.dropout(torch.softmax(scores.float(), dim=-1).type_as(scores))
        out = torch.matmul(attn, v).transpose(1, 2).reshape(b, t, -1)
        return hidden + self.dropout(self.o(out)), position_bias
