import math

import torch
from torch import nn


class SigmoidAttention(nn.Module):
    """Causal multi-head attention with a sigmoid in place of the softmax.

    Every query/key pair gets an independent gate in (0, 1) and a row is not normalised to one
    (Ramapuram et al., "Theory, Analysis, and Best Practices for Sigmoid Self-Attention").
    A learned per-head offset, initialised at -log(context_size), keeps the row sums of order one
    at the start of training.
    """

    def __init__(self, dim: int, num_heads: int = 4, context_size: int = 256):
        super().__init__()
        if dim % num_heads:
            raise ValueError("dim must be a multiple of num_heads")
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.offset = nn.Parameter(torch.full((num_heads, 1, 1), -math.log(context_size)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (
            y.view(b, t, self.num_heads, self.head_dim).transpose(1, 2) for y in self.to_qkv(x).chunk(3, dim=-1)
        )
        logits = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(self.head_dim) + self.offset
        future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        gates = torch.sigmoid(logits.masked_fill(future, float("-inf")))
        y = torch.einsum("bhij,bhjd->bhid", gates, v)
        return self.to_out(y.transpose(1, 2).reshape(b, t, c))
