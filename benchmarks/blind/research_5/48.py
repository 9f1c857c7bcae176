import math
from typing import Optional

import torch
import torch.nn as nn


class SigmoidAttention(nn.Module):
    """Causal attention with an elementwise sigmoid instead of the softmax.

    After "Theory, Analysis, and Best Practices for Sigmoid Self-Attention" (Ramapuram et al.): the
    logits are shifted by ``-log(n)``, where n is the context size of training, so that the weights
    of a row add up to about one at the start. The rows are not normalised. ``n`` is a constant of the
    module: taking the length of the input would make a prefix depend on what follows it.

    ``attention_mask`` is additive, ``[B, 1, 1, T]`` or ``[B, 1, T, T]``: 0 to keep, -inf to drop. A
    row without anything to attend to gives zeros.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, context_size: int = 32, layer_scale: float = 0.5):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.bias = -math.log(context_size)
        self.norm = nn.LayerNorm(dim)
        self.q_norm = nn.LayerNorm(self.head_dim)
        self.k_norm = nn.LayerNorm(self.head_dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)
        self.gamma = nn.Parameter(torch.full((dim,), layer_scale))

    def forward(self, x: torch.Tensor, attention_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k = self.q_norm(q), self.k_norm(k)
        logits = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim) + self.bias
        future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        logits = logits.masked_fill(future, float("-inf"))
        if attention_mask is not None:
            logits = logits + attention_mask
        weights = torch.sigmoid(logits)
        out = (weights @ v).transpose(1, 2).reshape(b, t, d)
        return x + self.gamma * self.proj(out)
