import math

import torch
import torch.nn as nn


class CausalRelativeBias(nn.Module):
    """One-sided T5 buckets: distances 0 .. buckets/2 - 1 are exact, larger ones logarithmic."""

    def __init__(self, heads: int, num_buckets: int = 16, max_distance: int = 64):
        super().__init__()
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.emb = nn.Embedding(num_buckets, heads)

    def bucket(self, rel):
        dist = (-rel).clamp(min=0)
        exact = self.num_buckets // 2
        log_part = exact + (
            torch.log(dist.clamp(min=1).float() / exact)
            / math.log(self.max_distance / exact)
            * (self.num_buckets - exact)
        ).long()
        log_part = log_part.clamp(max=self.num_buckets - 1)
        return torch.where(dist < exact, dist, log_part)

    def forward(self, i: int, j: int, device=None):
        q_pos = torch.arange(j - i, j, device=device)
        k_pos = torch.arange(j, device=device)
        rel = q_pos[:, None] - k_pos[None, :]
        return self.emb(self.bucket(rel)).permute(2, 0, 1)


class RelBiasDecoderAttention(nn.Module):
    def __init__(self, dim: int = 64, heads: int = 4, dim_head: int = 16):
        super().__init__()
        self.heads = heads
        inner = heads * dim_head
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_k = nn.Linear(dim, inner, bias=False)
        self.to_v = nn.Linear(dim, inner, bias=False)
        self.to_out = nn.Linear(inner, dim, bias=False)
        self.rel_bias = CausalRelativeBias(heads)
        self.scale = dim_head**-0.5

    def forward(self, x, past=None):
        """past: (k, v) of earlier tokens, each (batch, heads, past_len, dim_head). Returns output and new past."""
        b, n, _ = x.shape
        q, k, v = (f(x).view(b, n, self.heads, -1).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        if past is not None:
            k = torch.cat((past[0], k), dim=-2)
            v = torch.cat((past[1], v), dim=-2)
        j = k.shape[-2]
        sim = q @ k.transpose(-1, -2) * self.scale
        sim = sim + self.rel_bias(n, j, x.device)
        mask = torch.ones(n, j, dtype=torch.bool, device=x.device).triu(j - n + 1)
        sim = sim.masked_fill(mask, -torch.finfo(sim.dtype).max)
        out = sim.softmax(dim=-1) @ v
        return self.to_out(out.transpose(1, 2).reshape(b, n, -1)), (k, v)
