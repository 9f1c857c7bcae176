import math
from typing import Optional

import torch
import torch.nn as nn


class SigmoidSelfAttention(nn.Module):
    """Self-attention with an elementwise sigmoid in place of the softmax.

    Following "Theory, Analysis, and Best Practices for Sigmoid Self-Attention" the logits are
    shifted by ``-log(n)`` with ``n`` the number of keys a query may look at, which keeps the
    row sums near one at initialisation. Rows are deliberately not normalised.

    Args:
        dim: model width.
        num_heads: number of heads.
        causal: restrict every position to itself and the past.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, causal: bool = False):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.causal = causal
        self.in_proj = nn.Linear(dim, 3 * dim)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor, valid: Optional[torch.Tensor] = None) -> torch.Tensor:
        """x: (B, N, dim); valid: (B, N) bool, True where the token is real."""
        B, N, _ = x.shape
        qkv = self.in_proj(x).view(B, N, 3, self.num_heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)

        allowed = torch.ones(B, 1, N, N, dtype=torch.bool, device=x.device)
        if valid is not None:
            allowed = allowed & valid[:, None, None, :]
        if self.causal:
            allowed = allowed & torch.ones(N, N, dtype=torch.bool, device=x.device).tril()

        n_keys = allowed.sum(dim=-1, keepdim=True).clamp(min=1)
        logits = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim)
        logits = logits - n_keys.to(logits.dtype).log()

        probs = torch.sigmoid(logits) * allowed.to(logits.dtype)
        ctx = (probs @ v).transpose(1, 2).reshape(B, N, -1)
        return self.out_proj(ctx)
