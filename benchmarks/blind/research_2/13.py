import math
from typing import Optional

import torch
import torch.nn as nn


class SigmoidAttention(nn.Module):
    """Sigmoid self-attention (Ramapuram et al., 2024).

    The weights are independent Bernoulli-like gates, sigmoid(q.k / sqrt(d) + b) with b = -log(n), n the number
    of keys a query may see. They are not divided by their sum; the bias keeps the sum near one at
    initialisation.

    key_padding_mask: bool (B, N), True marks padding (the ``nn.MultiheadAttention`` convention).
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, qk_norm: bool = True):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.q_norm = nn.LayerNorm(self.head_dim) if qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(self.head_dim) if qk_norm else nn.Identity()
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x: torch.Tensor, key_padding_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        B, N, C = x.shape
        q, k, v = self.wqkv(x).view(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)
        logits = (q @ k.transpose(-2, -1)) / math.sqrt(self.head_dim)

        if key_padding_mask is None:
            logits = logits - math.log(N)
        else:
            visible = (~key_padding_mask).sum(dim=-1).clamp(min=1).to(logits.dtype)
            logits = logits - visible.log().view(B, 1, 1, 1)
            logits = logits.masked_fill(key_padding_mask[:, None, None, :], float("-inf"))

        weights = torch.sigmoid(logits)
        out = (weights @ v).transpose(1, 2).reshape(B, N, C)
        return self.wo(out)
