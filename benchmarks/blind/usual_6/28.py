import math

import torch
import torch.nn as nn


class RelativeBiasCausalAttention(nn.Module):
    """Causal self-attention with a learned bias per head and distance bucket.

    Half of the buckets cover small distances exactly, the rest grow logarithmically up
    to ``max_distance``.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, num_buckets: int = 16, max_distance: int = 64):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out_proj = nn.Linear(dim, dim, bias=False)
        self.rel_bias = nn.Embedding(num_buckets, num_heads)

    def position_buckets(self, length: int, device) -> torch.Tensor:
        pos = torch.arange(length, device=device)
        relative = pos[:, None] - pos[None, :]
        distance = -torch.min(relative, torch.zeros_like(relative))

        max_exact = self.num_buckets // 2
        large = max_exact + (
            torch.log(distance.clamp(min=1).float() / max_exact)
            / math.log(self.max_distance / max_exact)
            * (self.num_buckets - max_exact)
        ).long()
        large = large.clamp(max=self.num_buckets - 1)
        return torch.where(distance < max_exact, distance, large)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        bias = self.rel_bias(self.position_buckets(n, x.device)).permute(2, 0, 1)
        scores = scores + bias.unsqueeze(0)
        causal = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
        scores = scores.masked_fill(~causal, float("-inf"))
        y = scores.softmax(dim=-1) @ v
        return self.out_proj(y.transpose(1, 2).reshape(b, n, c))
