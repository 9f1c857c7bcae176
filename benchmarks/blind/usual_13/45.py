import math

import torch
import torch.nn as nn


class RelativeBias(nn.Module):
    """Bucketed relative position bias: exact for short distances, logarithmic beyond."""

    def __init__(self, heads, num_buckets=32, max_distance=128):
        super().__init__()
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.table = nn.Embedding(num_buckets, heads)

    def bucket(self, rel):
        n = torch.clamp(-rel, min=0)
        exact = self.num_buckets // 2
        log_ratio = torch.log(n.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        far = exact + (log_ratio * (self.num_buckets - exact)).long()
        far = far.clamp(max=self.num_buckets - 1)
        return torch.where(n < exact, n, far)

    def forward(self, n, device):
        q_pos = torch.arange(n, device=device)
        k_pos = torch.arange(n, device=device)
        rel = q_pos[:, None] - k_pos[None, :]
        return self.table(self.bucket(rel)).permute(2, 0, 1)


class DecoderAttention(nn.Module):
    """Causal self-attention with a T5-like relative position bias."""

    def __init__(self, dim=64, heads=4, num_buckets=32, max_distance=128, dropout=0.0):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.norm = nn.LayerNorm(dim)
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.rel_bias = RelativeBias(heads, num_buckets, max_distance)
        self.dropout = nn.Dropout(dropout)
        self.to_out = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.to_qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in (q, k, v))

        sim = q @ k.transpose(-1, -2) * self.scale
        sim = sim + self.rel_bias(n, x.device)
        causal_mask = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        sim = sim.masked_fill(causal_mask, -torch.finfo(sim.dtype).max)

        attn = self.dropout(sim.softmax(dim=-1))
        out = (attn @ v).transpose(1, 2).reshape(b, n, d)
        return x + self.to_out(out)
