import math
from typing import Optional

import torch
import torch.nn as nn


def softmax_one(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """softmax_1(x)_i = exp(x_i) / (1 + sum_j exp(x_j)), "attention is off by one"."""
    # subtract the max for stability
    x = x - x.max(dim=dim, keepdim=True).values.detach()
    exp_x = torch.exp(x)
    return exp_x / (1 + exp_x.sum(dim=dim, keepdim=True))


class QuietAttention(nn.Module):
    """Multi-head attention with softmax_1.

    The one in the denominator acts as an extra key with logit zero and value zero, so that a head
    whose logits are all very negative can stay silent.
    """

    def __init__(self, embed_dim: int = 64, num_heads: int = 4, causal: bool = False, dropout: float = 0.0):
        super().__init__()
        assert embed_dim % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.causal = causal
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.o_proj = nn.Linear(embed_dim, embed_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """mask: (B, T) boolean, True for the keys to use."""
        B, T, C = x.shape
        q = self.q_proj(x).view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(B, T, self.num_heads, self.head_dim).transpose(1, 2)

        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], torch.finfo(scores.dtype).min)
        if self.causal:
            future = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(future, torch.finfo(scores.dtype).min)

        attn = self.dropout(softmax_one(scores, dim=-1))
        out = (attn @ v).transpose(1, 2).reshape(B, T, C)
        return self.o_proj(out)
